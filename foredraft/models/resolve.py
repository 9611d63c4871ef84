"""From what a user writes after ``--model`` to a local directory that a worker can load."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from foredraft.config import cache_directory
from foredraft.engine.model_config import UnsupportedModel, read_model_config
from foredraft.models.catalog import KNOWN_MODELS, KnownModel
from foredraft.models.fetch import ModelError, fetch_gguf
from foredraft.tokenizer_hash import read_tokenizer

_CONVERSION_MODULES = ("gguf", "numpy", "safetensors")


def resolve_model(name: str) -> Path:
    """The directory of ``name``: a known id (fetched if it is not there yet) or a local directory.

    Raises:
        ModelError: it is neither, or the directory holds no model that the engine runs or no
            tokenizer.
    """
    if name in KNOWN_MODELS:
        return _known_directory(KNOWN_MODELS[name])
    directory = Path(name).expanduser()
    if not directory.is_dir():
        known = ", ".join(KNOWN_MODELS)
        raise ModelError(f"model must be a local directory or one of: {known}; got {name!r}")
    _check_directory(directory)
    return directory.resolve()


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
    return directory


def _convert_into(model: KnownModel, directory: Path) -> None:
    """Work beside ``directory`` and rename at the end, so that it is there whole or not at all."""
    missing = [name for name in _CONVERSION_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"model {model.model_id} must be converted once, which needs {', '.join(missing)}: "
            "pip install 'foredraft[worker]'"
        )
    from foredraft.models.convert import convert_gguf

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as scratch:
        gguf_path = fetch_gguf(model, Path(scratch))
        converted = Path(scratch) / model.model_id
        converted.mkdir()
        convert_gguf(gguf_path, converted)
        _publish(converted, directory)


def _publish(converted: Path, directory: Path) -> None:
    try:
        converted.rename(directory)
    except OSError:
        # Another process finished first: a directory that is not empty cannot be replaced.
        if not directory.is_dir():
            raise


def _check_directory(directory: Path) -> None:
    """The small files are read here, so that a fault is told before any process starts."""
    try:
        read_model_config(directory)
        read_tokenizer(directory)
    except UnsupportedModel as error:
        raise ModelError(f"model directory {directory}: {error}") from error
