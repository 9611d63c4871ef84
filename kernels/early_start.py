"""Kernels of a step that start before the one before them has ended.

On sm_90 a launch may be let in as soon as every program of the kernel before says so and there is
room (programmatic dependent launch). Before `begin` nothing is read or written, only fetched into
the cache that all processors share: weights, which no kernel of a step writes. `begin` waits until
the kernel before has ended; as every kernel that starts early calls it in every program, all
earlier ones have ended then, too. Short kernels let the next one in before they wait, so that it
stands ready and fetches its weights meanwhile. No bit depends on it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED

_PREFETCH = tl.constexpr("""{
    .reg .pred some;
    mov.u32 $0, 0;
    setp.gt.s32 some, $2, 0;
    @some cp.async.bulk.prefetch.L2.global [$1], $2;
}""")


@triton.jit
def let_next_in(EARLY: tl.constexpr):
    """The kernel behind this one may start, up to its `begin`."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def begin(EARLY: tl.constexpr):
    """What kernels before this one have written may be read, and what they read be overwritten."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def bring_near(addresses, size):
    """Start loading ``size`` bytes, a multiple of 16, from each address into the shared cache."""
    tl.inline_asm_elementwise(
        _PREFETCH,
        "=r,l,r",
        [addresses.to(tl.int64), tl.zeros(addresses.shape, tl.int32) + size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def bring_vector_near(vector, size):
    """Start loading ``size`` values, or a few less, if they lie where they can be."""
    at = tl.arange(0, 32)
    piece = tl.cdiv(size, 32 * 8) * 8
    count = tl.maximum(tl.minimum(size - at * piece, piece), 0) // 8 * 8
    aligned = vector.to(tl.int64) % 16 == 0
    count = tl.where(aligned & (tl.program_id(0) == 0), count, 0)
    bring_near(vector + at * piece, count * (vector.dtype.element_ty.primitive_bitwidth // 8))


def starts_early(device: torch.device) -> bool:
    """Whether kernels on this device may be launched with ``launch_pdl``."""
    return not INTERPRETED and capability(device) >= (9, 0)


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability; a CPU, where kernels are interpreted, can do all that sm_90 can."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
