"""Logits of few tokens, float32, each row with the bits that it has alone.

``logits[m, v] = sum_k x[m, k] w[v, k]``, times ``w_scale[v]`` and ``x_scale[m]`` if there are any

``weight [V, K]`` is bfloat16, or ``float8_e4m3fn`` with float32 ``weight_scale [V]``; ``x [M, K]``
is bfloat16, or ``float8_e4m3fn`` with float32 ``x_scale [M]`` beside FP8 weights. Rows of padding
in the vocabulary are left out by passing ``weight[:vocabulary]``. The products are those of
`bf16_gemm_skinny`, `w8a16_gemm_skinny` and `fp8_gemm_skinny`, with their errors but not rounded to
bfloat16: rounded logits tie, and ties go to the lowest id. Moves the weights once and 4 bytes per
logit.
"""

from __future__ import annotations

import torch

from kernels.skinny_arguments import Extras, Workspace
from kernels.skinny_gemm import skinny_gemm, workspace_for
from kernels.skinny_table import BF16, FP8, W8A16


def lm_head(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    x_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """The logits, float32 ``[M, V]``; ``out`` and ``workspace`` are made unless they are given.

    Raises:
        ValueError: an argument has another shape or dtype than it may have, or a scale lacks.
    """
    operands = _operands(x, weight)
    if (operands == BF16) != (weight_scale is None):
        raise ValueError("weight_scale must be given exactly with FP8 weights")
    if (operands == FP8) != (x_scale is not None):
        raise ValueError("x_scale must be given exactly with FP8 tokens")
    if out is not None and out.dtype != torch.float32:
        raise ValueError(f"out must be torch.float32, not {out.dtype}")
    return skinny_gemm(
        operands,
        x,
        weight,
        Extras(weight_scale, x_scale),
        dtype=torch.float32,
        out=out,
        workspace=workspace,
    )


def lm_head_workspace(x: torch.Tensor, weight: torch.Tensor) -> Workspace:
    """Room for the logits of as many rows as ``x`` has."""
    return workspace_for(_operands(x, weight), weight, x.shape[0])


def lm_head_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    x_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in float64."""
    logits = x.double() @ weight.double().T
    if weight_scale is not None:
        logits = logits * weight_scale.double()
    return logits if x_scale is None else logits * x_scale.double()[:, None]


def _operands(x: torch.Tensor, weight: torch.Tensor) -> str:
    if weight.dtype != torch.float8_e4m3fn:
        return BF16
    return FP8 if x.dtype == torch.float8_e4m3fn else W8A16
