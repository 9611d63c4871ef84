"""SiLU of the gate times the up projection: what stands before ``down`` in a model in bfloat16.

For every row of ``gate_up [rows, 2 I]``, gates first: ``bfloat16(g / (1 + exp(-g)) * u)``, in
float32 before it is rounded once. Moves ``6 * rows * I`` bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.e4m3 import to_bf16
from kernels.row_launch import checked_rows
from kernels.silu_mul_quant import silu_mul

_LANES = 512


@triton.jit
def _swiglu(gate_up, out, width, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = at < width
    here = gate_up + row * 2 * width + at
    gate = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(here + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, to_bf16(silu_mul(gate, up)), mask=inside)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """bfloat16 [rows, I] of bfloat16 [rows, 2 I].

    Raises:
        ValueError: ``gate_up`` is something else.
    """
    checked_rows("gate_up", gate_up)
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up must have an even number of columns, not {both}")
    width = both // 2
    out = gate_up.new_empty((rows, width))
    if rows:
        grid = (rows, triton.cdiv(width, _LANES))
        _swiglu[grid](gate_up, out, width, LANES=_LANES, num_warps=2)
    return out
