"""From what a user writes after ``--model`` to a local directory that a worker can load."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from pathlib import Path

from foredraft.config import cache_directory
from foredraft.engine.model_config import UnsupportedModel, has_blocks, read_model_config
from foredraft.models.catalog import DRAFT_FILES, KNOWN_DRAFTS, KNOWN_MODELS, KnownModel
from foredraft.models.fetch import ModelError, fetch_gguf
from foredraft.models.publish import publish
from foredraft.params import InvalidField
from foredraft.tokenizer_hash import read_tokenizer

logger = logging.getLogger(__name__)

_CONVERSION_MODULES = ("gguf", "numpy", "safetensors")
_DRAFT_MODULES = ("numpy", "safetensors")


def resolve_model(name: str, option: str = "--model", others: str = "") -> Path:
    """The directory of ``name``: a known id (fetched if it is not there yet) or a local directory.

    ``option`` is where the user wrote it, ``others`` what else is allowed there.

    Raises:
        InvalidField: it is neither.
        ModelError: the directory holds no model that the engine runs or no tokenizer, or a known
            model cannot be had.
    """
    if name in KNOWN_MODELS:
        return _known_directory(KNOWN_MODELS[name])
    directory = Path(name).expanduser()
    if not directory.is_dir():
        known = ", ".join(KNOWN_MODELS)
        allowed = f"{others}a local directory or a known id ({known}), not {name!r}"
        raise InvalidField(option, allowed)
    _check_directory(directory, option)
    return directory.resolve()


def resolve_draft(
    name: str, model: str, option: str = "--draft", model_option: str = "--model"
) -> Path | None:
    """The directory of the draft ``name`` for ``model``, as a user writes them after the options.

    "none" is None; "auto" the draft that is shipped for the model, unpacked once, or None where
    none is or it cannot be unpacked; anything else is as in `resolve_model`.

    Raises:
        InvalidField: as in `resolve_model`.
        ModelError: as in `resolve_model`.
    """
    if name == "none":
        return None
    if name != "auto":
        return resolve_model(name, option, "none, auto, ")
    file = _shipped_draft(model)
    if file is None:
        return None
    target = resolve_model(model, model_option)
    _need(_DRAFT_MODULES, f"the draft of model {target.name} must be unpacked")
    from foredraft.models.draft_unpacking import unpack_draft

    try:
        return unpack_draft(file, target)
    except ModelError as error:  # nobody has asked for it: it costs speed only
        logger.warning("no draft model: %s", error)
        return None


def wants_draft(name: str, model: str) -> bool:
    """Whether there will be a draft model; told from the names alone, before any is fetched."""
    return name != "none" and (name != "auto" or _shipped_draft(model) is not None)


def converted_path(model: KnownModel) -> Path:
    """Where the converted model is kept, whether or not it is there yet."""
    return cache_directory() / "models" / model.model_id


def _known_directory(model: KnownModel) -> Path:
    directory = converted_path(model)
    if not directory.is_dir():
        try:
            _convert_into(model, directory)
        except OSError as error:  # no right to write, no room
            text = f"model {model.model_id} cannot be kept in {directory.parent}: {error}"
            raise ModelError(text) from error
    elif not has_blocks(directory):
        logger.warning(
            "model %s was converted before weights were kept in blocks, and is slower on a CPU for "
            "it: delete %s to have it converted again",
            model.model_id,
            directory,
        )
    return directory


def _convert_into(model: KnownModel, directory: Path) -> None:
    """Work beside ``directory`` and rename at the end, so that it is there whole or not at all."""
    _need(_CONVERSION_MODULES, f"model {model.model_id} must be converted once")
    from foredraft.models.convert import convert_gguf

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as scratch:
        gguf_path = fetch_gguf(model, Path(scratch))
        converted = Path(scratch) / model.model_id
        converted.mkdir()
        convert_gguf(gguf_path, converted)
        publish(converted, directory)


def _need(modules: tuple[str, ...], work: str) -> None:
    """Raises ModelError if the packages for some work are not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{work}, which needs {', '.join(missing)}: pip install 'foredraft[worker]'"
        )


def _shipped_draft(model: str) -> Path | None:
    for known, file in KNOWN_DRAFTS.items():
        directory = converted_path(KNOWN_MODELS[known])
        if model == known or Path(model).expanduser().resolve() == directory.resolve():
            return DRAFT_FILES / file
    return None


def _check_directory(directory: Path, option: str) -> None:
    """The small files are read here, so that a fault is told before any process starts."""
    try:
        read_model_config(directory)
        read_tokenizer(directory)
    except UnsupportedModel as error:
        raise ModelError(f"{option} {directory}: {error}") from error
