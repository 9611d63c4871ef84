"""Weights to E4M3 with one scale per output channel; done once, when a model is loaded.

For every row n of ``w [N, K]``::

    scale[n] = up_to_bfloat16(max(amax_k |w[n, k]|, 2^-100) / 448)
    code[n, k] = e4m3(w[n, k] / scale[n])

Rounding the scale up, and before it is used, makes it the same number wherever a checkpoint keeps
its scales in bfloat16, and no code saturates. ``w`` is off by at most 2^-4 of itself, or by
``scale * 2^-10`` where that is more. A row of zeros gives zeros and a scale above zero; a row that
holds a NaN or an infinity gets the scale NaN and the code NaN throughout, for the loader to refuse.

In: bfloat16, float16 or float32. Out: ``float8_e4m3fn [rows, columns]`` and float32 ``[rows]``,
where both sides may be larger than N and K (`padded`, for products that want multiples of 16):
what is added is zero, with the scale 1. Moves ``w`` and the codes once each, and reads ``w`` again
from the cache; divisions are exact, so the bytes are the reference's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.e4m3 import quantize_e4m3, row_amax, scale_of, scale_reference, to_e4m3

_ALIGNMENT = 16
_BLOCK = 2048
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def _quantize_weight(w, codes, scales, N, K, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    amax = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        inside = (start + at < K) & (row < N)
        values = tl.load(w + row * K + start + at, mask=inside, other=0.0).to(tl.float32)
        # As integers, because a NaN must not be passed over.
        magnitudes = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        amax = tl.maximum(amax.to(tl.int32, bitcast=True), magnitudes).to(tl.float32, bitcast=True)
    scale, _ = scale_of(row_amax(amax, 0))
    bits = scale.to(tl.int32, bitcast=True)
    up = ((bits + 0xFFFF) & -0x10000).to(tl.float32, bitcast=True)
    scale = tl.where(scale == scale, up, scale)
    scale = tl.where(row < N, scale, 1.0)
    tl.store(scales + row, scale)
    for start in range(0, columns, BLOCK):
        inside = (start + at < K) & (row < N)
        values = tl.load(w + row * K + start + at, mask=inside, other=0.0).to(tl.float32)
        quotient = tl.div_rn(values, tl.zeros([BLOCK], tl.float32) + scale)
        tl.store(codes + row * columns + start + at, to_e4m3(quotient), mask=start + at < columns)


def padded(size: int) -> int:
    """The next multiple of 16."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def quantize_weight(
    weight: torch.Tensor, *, pad: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of ``weight [N, K]``; with ``pad``, of ``[padded(N), padded(K)]``.

    Raises:
        ValueError: ``weight`` has another shape or dtype than it may have.
    """
    if weight.dim() != 2 or weight.dtype not in _DTYPES:
        raise ValueError(f"weight must be a float matrix, not {weight.dtype} {list(weight.shape)}")
    count, width = weight.shape
    rows, columns = (padded(count), padded(width)) if pad else (count, width)
    codes = weight.new_empty((rows, columns), dtype=torch.float8_e4m3fn)
    scales = weight.new_empty(rows, dtype=torch.float32)
    if rows:
        _quantize_weight[(rows,)](
            weight.contiguous(), codes, scales, count, width, columns, BLOCK=_BLOCK, num_warps=8
        )
    return codes, scales


def quantize_weight_reference(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for ``pad=False``, in torch."""
    values = weight.float()
    scale, _ = scale_reference(values.abs().amax(dim=1))
    bits = scale.view(torch.int32)
    up = (((bits + 0xFFFF) >> 16) << 16).view(torch.float32)
    scale = torch.where(scale.isnan(), scale, up)
    return quantize_e4m3(values / scale[:, None]), scale
