"""FP8 product of any number of tokens: of one kernel or the other.

``out[m, n] = bfloat16(sum_k x[m, k] w[n, k] * w_scale[n] * x_scale[m] + bias[n] + residual[m, n])``

Operands as in `fp8_gemm_skinny`. `fp8_gemm_tall` takes over from 129 rows on an H100 or newer where
K is a multiple of 16; anything else, on any GPU with FP8, is `fp8_gemm_skinny`'s kernel with tiles
of 128 tokens. Weights of other shapes are padded when they are loaded
(``quantize_weight(..., pad=True)``), tokens by ``codes=`` of the padded width, and ``columns`` cuts
the padding off the result.

A row's bits are its own among launches of 129 rows and more, and among those of fewer.
"""

from __future__ import annotations

import torch

from kernels.early_start import capability
from kernels.fp8_gemm_tall import fp8_gemm_tall
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
    residual: torch.Tensor | None = None,
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
    extras = Extras(weight_scale, x_scale, bias, residual)
    if is_tall(x, weight):
        out = fp8_gemm_tall(x, weight, extras, out)
    else:
        out = checked_output(FP8, x, weight, extras, out, torch.bfloat16)
        skinny_gemm(FP8, x, weight, extras, out=out)
    return out[:, :columns]


def is_tall(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `fp8_gemm_tall` computes this product."""
    fits = len(x) >= _FEWEST_ROWS and weight.shape[1] % _ALIGNMENT == 0
    return fits and capability(x.device) >= (9, 0)
