"""One thing that is measured: a kernel at a shape, beside what it must beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

OURS = "ours"

# What a check found: whether something holds, or how far something is off.
Findings = Mapping[str, bool | float]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case with its tensors on the device.

    Attributes:
        contestants: launches by name, `OURS` among them. Each is called with the number of a copy
            and must use that copy of whatever is meant to come from memory; it is captured in a
            CUDA graph, so it neither waits for the device nor allocates by what it finds there.
        copies: how many copies there are (`copies_for`).
        check: what must hold whatever the time; run once, before anything is timed.
    """

    contestants: Mapping[str, Callable[[int], object]]
    copies: int
    check: Callable[[], Findings]


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured, before anything is on a device.

    Attributes:
        kernel: the name of its file in ``kernels/``, without ``.py``.
        shape: what tells this case from the kernel's others, for example ``70b down, 16 rows``.
        moved_bytes: what one run has to read and write at least, from and to memory.
        prepare: makes the tensors on a device.
        goals: by name of a contestant, how many times its time ours must be faster.
        of_copy: the share of copy bandwidth that ours must reach; 0 for no such goal.
        at_most_us: the microseconds that ours may take; 0 for no such goal.
        flat: by shape of another case of this kernel, how many times its time ours may take.
    """

    kernel: str
    shape: str
    moved_bytes: int
    prepare: Callable[[torch.device], Prepared]
    goals: Mapping[str, float] = field(default_factory=dict)
    of_copy: float = 0.0
    at_most_us: float = 0.0
    flat: Mapping[str, float] = field(default_factory=dict)


_OUT_OF_CACHE = 256 << 20


def copies_for(copy_bytes: int) -> int:
    """How many copies of so many bytes are read in turn until none is left in the cache."""
    return max(2, -(-_OUT_OF_CACHE // max(copy_bytes, 1 << 20)))
