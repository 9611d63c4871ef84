"""Rows to E4M3 with one scale per token: what stands between attention and its output projection.

For every row m of ``x [rows, K]``::

    scale[m] = max(amax |x[m]|, 2^-100) / 448,  code[m] = e4m3(x[m] / scale[m])

In: bfloat16. Out: ``float8_e4m3fn [rows, columns]`` and float32 scales ``[rows]``; ``columns`` may
exceed K, and then zeros fill the rest. One program per row: a row's bits depend on nothing but that
row, and a row with a NaN or an infinity gets the scale NaN and NaN codes, alone. Error: 2^-4 of a
value, or ``scale * 2^-10``. Moves ``3 * rows * K`` bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.e4m3 import row_amax, scale_of, to_e4m3
from kernels.early_start import begin, let_next_in, starts_early
from kernels.row_launch import checked_codes, checked_rows, row_warps


@triton.jit
def _quantize_rows(x, codes, scales, width, columns, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    let_next_in(EARLY)
    begin(EARLY)
    values = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    scale, reciprocal = scale_of(row_amax(values, 0))
    tl.store(scales + row, scale)
    tl.store(codes + row * columns + at, to_e4m3(values * reciprocal), mask=at < columns)


def quantize_rows(
    x: torch.Tensor,
    *,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales; both are made unless they are given. `quantize_rows_reference` of
    `kernels.e4m3` is the same in torch.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    checked_rows("x", x)
    rows, width = x.shape
    codes, scales = checked_codes(x, width, codes, scales)
    block = triton.next_power_of_2(codes.shape[1])
    early = starts_early(x.device)
    if rows:
        _quantize_rows[(rows,)](
            x,
            codes,
            scales,
            width,
            codes.shape[1],
            BLOCK=block,
            EARLY=early,
            launch_pdl=early,
            num_warps=row_warps(block),
        )
    return codes, scales
