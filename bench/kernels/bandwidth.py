"""What the GPU's memory gives: the ceilings that kernels and steps are held against.

Both are measured by kernels. A copy by the driver becomes a node that a copy engine may run, at
less than two thirds of what the processors reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from bench.kernels.case import OURS, Prepared
from bench.kernels.timing import time_launches

_BYTES = 1 << 30
_BLOCK = 8192  # 32-bit words of a program


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Gigabytes per second: read and written by a copy, and of reading alone."""

    copy: float
    read: float

    def __str__(self) -> str:
        return f"copies {self.copy:.0f} GB/s, reads {self.read:.0f} GB/s"

    @property
    def report(self) -> dict[str, float]:
        return {"copy_gb_s": round(self.copy, 1), "read_gb_s": round(self.read, 1)}


@triton.jit
def _copy(source, target, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at))


@triton.jit
def _read(source, sums, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + program, tl.sum(tl.load(source + at), 0))


def bandwidth(device: torch.device, rounds: int) -> Bandwidth:
    """Measured over 1 GiB."""
    words = _BYTES // 4
    source = torch.zeros(words, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    grid = (words // _BLOCK,)
    prepared = Prepared(
        {
            OURS: lambda copy: _copy[grid](source, target, BLOCK=_BLOCK, num_warps=8),
            "read": lambda copy: _read[grid](source, target, BLOCK=_BLOCK, num_warps=8),
        },
        1,
        dict,
    )
    times, _ = time_launches(prepared, rounds)
    return Bandwidth(2 * _BYTES / times[OURS] / 1e3, _BYTES / times["read"] / 1e3)
