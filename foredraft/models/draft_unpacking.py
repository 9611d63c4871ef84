"""From a packed draft and its target to a directory that a worker can load."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from foredraft.config import cache_directory
from foredraft.engine.model_config import VOCABULARY_FILE, UnsupportedModel
from foredraft.models.companions import copy_companions
from foredraft.models.draft_pack import DraftPack, Tensors, read_pack
from foredraft.models.fetch import ModelError
from foredraft.models.publish import publish
from foredraft.models.target_tensors import digest, read_target_tensor
from foredraft.models.tensor_file import write_tensors


def unpack_draft(file: Path, target: Path, out: Path | None = None) -> Path:
    """Unpack ``file`` beside the model in ``target``; a directory in Hugging Face's form.

    Without ``out`` it is kept in the cache, under the hash of what it holds, and made only once.

    Raises:
        ModelError: the file is no whole packed draft, the target is not the one that it was
            packed for, or the directory cannot be written.
    """
    pack = read_pack(file)
    shared = _shared_tensors(pack, file, target)
    if out is None:
        directory = cache_directory() / "drafts" / f"{file.stem}-{pack.sha256[:16]}"
        if directory.is_dir():
            return directory
    else:
        directory = out
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise ModelError(f"{directory} is there already: a draft is unpacked to a new place")
    try:
        _make(pack, shared, target, directory)
    except OSError as error:  # no right to write, no room
        text = f"packed draft {file.name} cannot be unpacked to {directory}: {error}"
        raise ModelError(text) from error
    return directory


def _shared_tensors(pack: DraftPack, file: Path, target: Path) -> Tensors:
    """What was left out of the pack, from the target."""
    tensors: Tensors = {}
    for name, expected in pack.left_out.items():
        try:
            tensors[name] = read_target_tensor(target, name)
        except UnsupportedModel as error:
            raise ModelError(f"packed draft {file.name} needs its target: {error}") from error
        if digest(tensors[name]) != expected:
            raise ModelError(
                f"packed draft {file.name} was made for {pack.target}, whose {name} is not that of "
                f"{target}"
            )
    return tensors


def _make(pack: DraftPack, shared: Tensors, target: Path, directory: Path) -> None:
    """Work beside ``directory`` and rename at the end, so that it is there whole or not at all."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".unpack-") as scratch:
        made = Path(scratch) / directory.name
        made.mkdir()
        copy_companions(target, made)
        config = json.dumps(pack.config | {"dtype": "float32"}, indent=2) + "\n"
        (made / "config.json").write_text(config, encoding="utf-8")
        if pack.card:
            (made / "README.md").write_text(pack.card, encoding="utf-8")
        floats = {name: rows.floats() for name, rows in pack.matrices.items()}
        write_tensors(shared | pack.vectors | floats, made / "model.safetensors")
        if pack.ids is not None:
            write_tensors({"ids": pack.ids}, made / VOCABULARY_FILE)
        publish(made, directory)
