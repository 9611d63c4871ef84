"""A trained draft as a directory that every reader of such directories understands."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from draft_service.training.pair import Pair
from foredraft.params import InvalidField

OUTPUT = "--output"
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


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
        for name in _COPIED:
            if (target / name).is_file():
                shutil.copyfile(target / name, made / name)
        add(made)
        for file in made.iterdir():
            file.chmod(0o644)  # the library's own is for its maker alone
        made.rename(output)
