"""Kernels of a step that start before the one before them has ended.

On sm_90 a launch may be let in as soon as every program of the kernel before has started and there
is room (programmatic dependent launch). What it finds before `begin` are only things that no kernel
of a step writes: weights, norms, tables of angles. `begin` waits for all that the kernel before has
written; as every kernel that is started early calls it in every program, all earlier kernels have
ended then, too. The next kernel is let in before the wait, so that several stand ready in line and
fetch their weights meanwhile. No bit depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Soon:
    """Weights that will be read soon: the first ``columns`` of every ``slice`` of [N, K]."""

    weight: torch.Tensor
    slice: int
    columns: int


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
def bring_share(soon, program, programs, WIDTH: tl.constexpr):
    """A program's share of fetching a `Soon`, nothing if its number is below zero.

    soon: (weight, N, K, slice, columns). ``WIDTH`` threads take a row of a slice each.
    """
    weight, N, K, slice_columns, columns = soon
    pairs = N * tl.cdiv(K, slice_columns)
    for first in range(tl.where(program < 0, pairs, program * WIDTH), pairs, programs * WIDTH):
        pair = first + tl.arange(0, WIDTH)
        start = pair // N * slice_columns
        count = tl.where(pair < pairs, tl.minimum(columns, K - start), 0)
        size = count * (weight.dtype.element_ty.primitive_bitwidth // 8)
        bring_near(weight + (pair % N).to(tl.int64) * K + start, size)


def starts_early(device: torch.device) -> bool:
    """Whether kernels on this device may be launched with ``launch_pdl``."""
    return not INTERPRETED and capability(device) >= (9, 0)


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability; a CPU, where kernels are interpreted, can do all that sm_90 can."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
