"""What a device's memory does not hold is told by the option that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from foredraft.params import InvalidField

_ON_A_CPU = "can't allocate memory"  # no error of its own there


@contextmanager
def within_memory(option: str) -> Iterator[None]:
    """Raises InvalidField of ``option`` where memory ran out within."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or _ON_A_CPU in str(error):
            raise InvalidField(option, "smaller: the device's memory does not hold it") from error
        raise
