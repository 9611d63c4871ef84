"""FP8 product of few tokens: both sides E4M3, one scale per token and per output channel.

``out[m, n] = bfloat16(sum_k x[m, k] w[n, k] * w_scale[n] * x_scale[m] + bias[n] + residual[m, n])``

``x`` is ``float8_e4m3fn [M, K]`` with float32 ``x_scale [M]`` (`rmsnorm_residual_quant`,
`silu_mul_quant`), ``weight`` is ``float8_e4m3fn [N, K]`` with float32 ``weight_scale [N]``
(`quantize_weight`). With ``silu_mul`` ``x`` is bfloat16 ``[M, 2 K]`` instead, and SiLU(gate) * up
is quantised inside, with one scale per token and tile of K. Any shape; M is meant to be 1 to 128.

A row's bits depend on that row and the shape of ``weight`` only. Error beside that of the codes: at
most ``2^-8 * sum |x w|`` of the sum (see `skinny_kernel`), and 2^-8 of the result, which is
rounded once. A row whose scale is NaN is NaN, alone. Moves ``N * K`` bytes of weights, and little
else.
"""

from __future__ import annotations

import torch

from kernels.skinny_arguments import Extras, Workspace
from kernels.skinny_gemm import skinny_gemm
from kernels.skinny_table import FP8, Tiling


def fp8_gemm_skinny(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    silu_mul: bool = False,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """The product, bfloat16 ``[M, N]``; ``x_scale`` is None exactly with ``silu_mul``.

    ``out`` (which may be ``residual``) and ``workspace`` are made unless they are given.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    if silu_mul != (x_scale is None):
        raise ValueError("x_scale must be given, or silu_mul set, but not both")
    extras = Extras(weight_scale, x_scale, bias, residual, silu_mul)
    return skinny_gemm(FP8, x, weight, extras, out=out, workspace=workspace, tiling=tiling)


def fp8_gemm_reference(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in float64, not rounded."""
    product = x.double() @ weight.double().T
    product = product * weight_scale.double() * x_scale.double()[:, None]
    if bias is not None:
        product = product + bias.double()
    return product if residual is None else product + residual.double()
