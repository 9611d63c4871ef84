"""SiLU of the gate times the up projection, quantised per token: what stands before ``down``.

For every row m of ``gate_up [rows, 2 I]``, gates first, in float32::

    y = g / (1 + exp(-g)) * u
    scale[m] = max(amax |y|, 2^-100) / 448,  code[m] = e4m3(y / scale[m])

In: bfloat16. Out: ``float8_e4m3fn [rows, columns]`` and float32 scales ``[rows]``; ``columns`` may
exceed I, and then zeros fill the rest. One program per row: a row's bits depend on nothing but that
row, and a row with a NaN or an infinity gets the scale NaN and NaN codes, alone. Error: ``y`` to
2^-18 of itself before it is rounded once, to 2^-4 or ``scale * 2^-10``. Moves ``5 * rows * I``
bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.e4m3 import quantize_rows_reference, row_amax, scale_of, to_e4m3
from kernels.early_start import begin, let_next_in, starts_early
from kernels.row_launch import checked_codes, checked_rows, row_warps


@triton.jit
def silu_mul(gate, up):
    """``gate / (1 + exp(-gate)) * up`` of float32 values."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _silu_mul_quant(
    gate_up, codes, scales, width, columns, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    let_next_in(EARLY)
    begin(EARLY)
    inside = at < width
    here = gate_up + row * 2 * width + at
    gate = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(here + width, mask=inside, other=0.0).to(tl.float32)
    y = silu_mul(gate, up)
    scale, reciprocal = scale_of(row_amax(y, 0))
    tl.store(scales + row, scale)
    tl.store(codes + row * columns + at, to_e4m3(y * reciprocal), mask=at < columns)


def silu_mul_quant(
    gate_up: torch.Tensor,
    *,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales; both are made unless they are given.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    checked_rows("gate_up", gate_up)
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up must have an even number of columns, not {both}")
    codes, scales = checked_codes(gate_up, both // 2, codes, scales)
    block = triton.next_power_of_2(codes.shape[1])
    early = starts_early(gate_up.device)
    if rows:
        _silu_mul_quant[(rows,)](
            gate_up,
            codes,
            scales,
            both // 2,
            codes.shape[1],
            BLOCK=block,
            EARLY=early,
            launch_pdl=early,
            num_warps=row_warps(block),
        )
    return codes, scales


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """``y`` in float32 before it is rounded."""
    gate, up = gate_up.float().chunk(2, dim=1)
    return gate / (1 + (-gate).exp()) * up


def silu_mul_quant_reference(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `silu_mul_quant` returns, in torch."""
    return quantize_rows_reference(silu_mul_reference(gate_up))
