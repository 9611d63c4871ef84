"""What a routine takes: an array of numbers and addresses."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence

Run = Callable[[int], None]  # takes the address of a job


class Job:
    """The array, kept from call to call."""

    def __init__(self, fields: Sequence[str], **values: int) -> None:
        self._places = {field: place for place, field in enumerate(fields)}
        self._numbers = (ctypes.c_int64 * len(fields))()
        self._address = ctypes.addressof(self._numbers)
        self.set(**values)

    def set(self, **values: int) -> None:
        """Numbers, addresses, or `float_bits`."""
        for field, value in values.items():
            self._numbers[self._places[field]] = value

    def run(self, routine: Run) -> None:
        routine(self._address)


def float_bits(value: float) -> int:
    """A float32 as a job holds it."""
    return int.from_bytes(struct.pack("<f", value), "little")
