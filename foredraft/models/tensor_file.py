"""A safetensors file that others read, too."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

MODEL = {"format": "pt"}  # by which Hugging Face's library knows its own


def write_tensors(
    tensors: Mapping[str, NDArray[Any]], file: Path, entries: Mapping[str, str] = MODEL
) -> None:
    """Write ``tensors`` with ``entries`` beside them.

    Raises:
        OSError: there is no right to write, or no room.
    """
    try:
        save_file(dict(tensors), file, metadata=dict(entries))
    except SafetensorError as error:  # it tells the reason in its text alone
        raise OSError(errno.EIO, str(error)) from error
    file.chmod(0o644)  # it is made for its owner only, but a cache may be shared
