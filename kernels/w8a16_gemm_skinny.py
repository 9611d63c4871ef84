"""Product of few tokens in bfloat16 with E4M3 weights: half the error of FP8, the same bytes.

``out[m, n] = bfloat16(sum_k x[m, k] w[n, k] * w_scale[n] + bias[n] + residual[m, n])``

``x`` is bfloat16 ``[M, K]``, or ``[M, 2 K]`` with ``silu_mul`` (gates first; SiLU(gate) * up is
rounded to bfloat16); ``weight`` is ``float8_e4m3fn [N, K]`` with float32 ``weight_scale [N]``.
Codes are exact in bfloat16; products are summed in float32. Any shape; M is meant to be 1 to 128.

A row's bits depend on that row and the shape of ``weight`` only. Error beside that of the codes:
``K * 2^-24 * sum |x w|`` of the sum, and 2^-8 of the result, which is rounded once. Moves ``N * K``
bytes of weights, and little else.
"""

from __future__ import annotations

import torch

from kernels.skinny_arguments import Extras, Workspace
from kernels.skinny_gemm import skinny_gemm
from kernels.skinny_table import W8A16, Tiling


def w8a16_gemm_skinny(
    x: torch.Tensor,
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
    """The product, bfloat16 ``[M, N]``.

    ``out`` (which may be ``residual``) and ``workspace`` are made unless they are given.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    extras = Extras(weight_scale, None, bias, residual, silu_mul)
    return skinny_gemm(W8A16, x, weight, extras, out=out, workspace=workspace, tiling=tiling)


def w8a16_gemm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in float64, not rounded."""
    product = x.double() @ weight.double().T * weight_scale.double()
    if bias is not None:
        product = product + bias.double()
    return product if residual is None else product + residual.double()
