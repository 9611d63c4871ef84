"""FP8 product of many tokens, as in prefill: bound by arithmetic.

``out[m, n] = bfloat16(sum_k x[m, k] w[n, k] * w_scale[n] * x_scale[m] + bias[n] + residual[m, n])``

A program per processor takes tile after tile of the output, so that a tile's end overlaps the next
one's beginning. Tiles are as wide as keeps all processors at work; K is never cut.

Same bits: the tensor cores keep the whole sum, 32 columns at a time from the first on, whatever the
tile and the number of rows. So a row has the same bits in any launch of this kernel (not those of
`fp8_gemm_skinny`). Of that sum they keep 14 bits and cut off the rest at each of its K / 32
additions: it is off by at most ``K * 2^-18`` of the largest partial sum, before it is rounded once,
to 2^-8. On terms of both signs that stays well below what the codes are off by.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.e4m3 import INTERPRETED, to_bf16
from kernels.skinny_arguments import Extras, checked_output
from kernels.skinny_table import FP8

_TOKENS = 128  # of a tile
_COLUMNS = 128  # of K, at a time
_BAND = 8  # tiles of tokens that take the same weights one after another
# Weight rows of a tile, warps and stages, and what a weight row costs beside one of the widest.
_TILES = ((256, 8, 3, 1.0), (128, 4, 4, 1.12), (64, 4, 6, 1.6))


def fp8_gemm_tall(
    x: torch.Tensor, weight: torch.Tensor, extras: Extras, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The product, bfloat16 ``[M, N]``, made unless it is given; K is a multiple of 16.

    ``extras`` has both scales and may have a bias and a residual.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    out = checked_output(FP8, x, weight, extras, out, torch.bfloat16)
    (rows, k), n = x.shape, len(weight)
    if k % 16:
        raise ValueError(f"K must be a multiple of 16, not {k}")
    if not rows:
        return out
    bands, processors = triton.cdiv(rows, _TOKENS), _processors(x.device)

    def cost(tile: tuple[int, int, int, float]) -> float:
        block_n, _, _, price = tile
        turns: int = -(-bands * -(-n // block_n) // processors)
        return turns * block_n * price

    block_n, warps, stages, _ = min(_TILES, key=cost)
    programs = min(processors, bands * triton.cdiv(n, block_n))
    _tall[(programs,)](
        TensorDescriptor.from_tensor(x, [_TOKENS, _COLUMNS]),
        TensorDescriptor.from_tensor(weight, [block_n, _COLUMNS]),
        out,
        extras.x_scale,
        extras.w_scale,
        extras.bias,
        extras.residual,
        rows,
        n,
        k,
        BIASED=extras.bias is not None,
        RESIDUAL=extras.residual is not None,
        PROGRAMS=programs,
        BLOCK_M=_TOKENS,
        BLOCK_N=block_n,
        BLOCK_K=_COLUMNS,
        BAND=_BAND,
        num_warps=warps,
        num_stages=stages,
    )
    return out


@triton.jit(do_not_specialize=["M"])
def _tall(
    x, w, out, x_scale, w_scale, bias, residual, M, N, K,
    BIASED: tl.constexpr, RESIDUAL: tl.constexpr, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    m_tiles, n_tiles = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), m_tiles * n_tiles, PROGRAMS, flatten=True):
        first = tile // (BAND * n_tiles) * BAND
        height = tl.minimum(m_tiles - first, BAND)
        m_tile = first + tile % (BAND * n_tiles) % height
        n_tile = tile % (BAND * n_tiles) // height
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            x_tile = x.load([m_tile * BLOCK_M, start])
            w_tile = w.load([n_tile * BLOCK_N, start])
            total = _multiplied(x_tile, w_tile, total)
        # Half by half: there is no room for a tile of sums and one of the residual.
        halves = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
        left, right = tl.split(halves)
        m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        by_token = tl.load(x_scale + m, mask=m < M, other=0.0)
        n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N // 2)
        _finish(left, m, n, by_token, out, w_scale, bias, residual, M, N, BIASED, RESIDUAL)
        n += BLOCK_N // 2
        _finish(right, m, n, by_token, out, w_scale, bias, residual, M, N, BIASED, RESIDUAL)


@triton.jit
def _finish(
    total, m, n, by_token, out, w_scale, bias, residual, M, N,
    BIASED: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    total *= tl.load(w_scale + n, mask=n < N, other=0.0)[None, :]
    total *= by_token[:, None]
    if BIASED:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    at = m[:, None].to(tl.int64) * N + n[None, :]
    inside = (m < M)[:, None] & (n < N)[None, :]
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, to_bf16(total), mask=inside)


@triton.jit
def _multiplied(x_tile, w_tile, total):
    """``total + x_tile w_tile^T``."""
    if INTERPRETED:
        return tl.dot(x_tile.to(tl.float32), tl.trans(w_tile.to(tl.float32)), total)
    else:
        return tl.dot(x_tile, tl.trans(w_tile), total)


@cache
def _processors(device: torch.device) -> int:
    """The interpreter runs one after another."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
