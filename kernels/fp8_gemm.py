"""FP8 product of many tokens, as in prefill: bound by arithmetic, so the library's where it is fit.

``out[m, n] = bfloat16(sum_k x[m, k] w[n, k] * w_scale[n] * x_scale[m] + bias[n])``

Operands as in `fp8_gemm_skinny`. ``torch._scaled_mm`` with row-wise scales takes over from 129 rows
on an H100 or newer where N and K are multiples of 16; anything else, on any GPU with FP8, is
`fp8_gemm_skinny`'s kernel with tiles of 128 tokens. Weights of other shapes are padded when they
are loaded (``quantize_weight(..., pad=True)``), tokens by ``codes=`` of the padded width, and
``columns`` cuts the padding off the result.

The library chooses its algorithm by the number of rows: a row's bits are its own only among
launches of one fixed shape, which is how prefill is run.

Error beside that of the codes, of our kernel: as in `fp8_gemm_skinny`. The library leaves the whole
sum in the tensor cores, which keep 14 bits of it and cut off the rest at each of its K / 32
additions: it is off by at most ``K * 2^-18`` of the largest partial sum, before it is rounded once,
to 2^-8. On terms of both signs that stays well below what the codes are off by.
"""

from __future__ import annotations

import torch

from kernels.skinny_arguments import Extras, checked_output
from kernels.skinny_gemm import skinny_gemm
from kernels.skinny_table import FP8

_FEWEST_ROWS = 129
_ALIGNMENT = 16


def fp8_gemm(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    columns: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product, bfloat16 ``[M, columns]``, of all N columns unless ``columns`` says less.

    It is a view of ``out [M, N]``, which is made unless it is given.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    if columns is not None and not 0 < columns <= weight.shape[0]:
        raise ValueError(f"columns must be from 1 to {weight.shape[0]}, not {columns}")
    extras = Extras(weight_scale, x_scale, bias)
    out = checked_output(FP8, x, weight, extras, out, torch.bfloat16)
    if takes_library(x, weight):
        torch._scaled_mm(
            x,
            weight.t(),
            scale_a=x_scale[:, None],
            scale_b=weight_scale[None, :],
            bias=None if bias is None else bias.bfloat16(),
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
            out=out,
        )
    else:
        skinny_gemm(FP8, x, weight, extras, out=out)
    return out[:, :columns]


def takes_library(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the library computes this product."""
    n, k = weight.shape
    fits = x.shape[0] >= _FEWEST_ROWS and n % _ALIGNMENT == k % _ALIGNMENT == 0
    return fits and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
