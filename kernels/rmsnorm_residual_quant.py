"""RMS norm of a residual sum, quantised per token: what stands before every linear layer.

For every row m, in float32::

    h = bfloat16(x[m] + residual[m])            (h = x[m] without a residual)
    y = h / sqrt(mean(h^2) + eps) * gamma
    scale[m] = max(amax |y|, 2^-100) / 448,  code[m] = e4m3(y / scale[m])    or  bfloat16(y)

``x``, ``residual`` and the new residual ``h`` are bfloat16 ``[rows, H]``, ``gamma`` is float32 or
bfloat16 ``[H]``. Out: ``h`` and either ``float8_e4m3fn [rows, columns]`` with float32 scales
``[rows]``, or bfloat16 ``[rows, H]``; ``columns`` may exceed H, and then zeros fill the rest.

One program per row and one fixed order of the sum: a row's bits depend on nothing but that row. A
row with a NaN or an infinity gets the scale NaN and NaN codes. Error: ``y`` to 2^-20 of itself
before it is rounded once, to 2^-4 (E4M3, or ``scale * 2^-10``) or 2^-8 (bfloat16). Moves
``7 * rows * H`` bytes with both a residual and quantisation.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.e4m3 import quantize_rows_reference, row_amax, scale_of, to_bf16, to_e4m3
from kernels.early_start import begin, bring_vector_near, let_next_in, starts_early
from kernels.row_launch import checked_codes, checked_rows, row_warps


@triton.jit
def _rmsnorm_residual(
    x,
    residual,
    gamma,
    out,
    scales,
    new_residual,
    H,
    columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    QUANTIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < H
    let_next_in(EARLY)
    if EARLY:
        bring_vector_near(gamma, H)
    begin(EARLY)
    h = tl.load(x + row * H + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        h += tl.load(residual + row * H + at, mask=inside, other=0.0).to(tl.float32)
        kept = to_bf16(h)
        tl.store(new_residual + row * H + at, kept, mask=inside)
        h = kept.to(tl.float32)
    mean = tl.sum(h * h, 0) / H
    root = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    y = h * root * tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)
    if QUANTIZE:
        scale, reciprocal = scale_of(row_amax(y, 0))
        tl.store(scales + row, scale)
        tl.store(out + row * columns + at, to_e4m3(y * reciprocal), mask=at < columns)
    else:
        tl.store(out + row * H + at, to_bf16(y), mask=inside)


def rmsnorm_residual_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    new_residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and the new residual (``x`` itself without ``residual``).

    ``codes``, ``scales`` and ``new_residual`` are made unless they are given; ``new_residual``
    may be ``residual``.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    codes, scales = checked_codes(x, x.shape[-1], codes, scales)
    kept = _launch(x, gamma, eps, residual, new_residual, codes, scales)
    return codes, scales, kept


def rmsnorm_residual(
    x: torch.Tensor,
    gamma: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    new_residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same without quantisation: bfloat16 ``y`` and the new residual.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    out = torch.empty_like(x) if out is None else checked_rows("out", out, x.shape)
    return out, _launch(x, gamma, eps, residual, new_residual, out, None)


def _launch(
    x: torch.Tensor,
    gamma: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    new_residual: torch.Tensor | None,
    out: torch.Tensor,
    scales: torch.Tensor | None,
) -> torch.Tensor:
    checked_rows("x", x)
    rows, width = x.shape
    if gamma.shape != (width,) or not gamma.is_contiguous():
        raise ValueError(f"gamma must be [{width}], not {list(gamma.shape)}")
    kept = x
    if residual is not None:
        checked_rows("residual", residual, x.shape)
        kept = torch.empty_like(x) if new_residual is None else new_residual
        checked_rows("new_residual", kept, x.shape)
    columns = out.shape[1]
    block = triton.next_power_of_2(max(width, columns))
    early = starts_early(x.device)
    if rows:
        _rmsnorm_residual[(rows,)](
            x,
            residual,
            gamma,
            out,
            scales,
            kept,
            width,
            columns,
            eps,
            HAS_RESIDUAL=residual is not None,
            QUANTIZE=scales is not None,
            BLOCK=block,
            EARLY=early,
            launch_pdl=early,
            num_warps=row_warps(block),
        )
    return kept


def rmsnorm_residual_reference(
    x: torch.Tensor, gamma: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``y`` in float32 before it is rounded, and the new residual."""
    kept = x if residual is None else (x.float() + residual.float()).bfloat16()
    h = kept.float()
    root = 1 / (h.square().mean(dim=1, keepdim=True) + eps).sqrt()
    return h * root * gamma.float(), kept


def rmsnorm_residual_quant_reference(
    x: torch.Tensor, gamma: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `rmsnorm_residual_quant` returns, in torch."""
    y, kept = rmsnorm_residual_reference(x, gamma, eps, residual)
    return *quantize_rows_reference(y), kept
