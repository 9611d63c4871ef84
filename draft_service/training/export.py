"""A trained draft as a directory that every reader of such directories understands."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from draft_service.training.pair import Pair
from foredraft.models.companions import copy_companions
from foredraft.params import InvalidField

OUTPUT = "--output"


def check_output(output: Path) -> None:
    """Find out before hours of work whether `export` will be able to write.

    Raises:
        InvalidField: there is something already, or its folder cannot be made.
    """
    if output.exists():
        raise InvalidField(OUTPUT, f"a directory that is not there yet: {output} is")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidField(OUTPUT, f"a place to write: {output}: {error.strerror}") from None


def export(pair: Pair, target: Path, output: Path, add: Callable[[Path], None]) -> None:
    """Write the draft in the type of the target's files, with the target's tokenizer.

    ``add`` writes what else belongs there. The directory is there whole or not at all.
    """
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as scratch:
        made = Path(scratch) / output.name
        pair.draft.to(pair.stored).save_pretrained(made)
        copy_companions(target, made)
        add(made)
        for file in made.iterdir():
            file.chmod(0o644)  # the library's own is for its maker alone
        made.rename(output)
