"""``out = x w^T`` for few rows of ``x``: what the three skinny products share.

The weights ``w [N, K]`` are the tall side of the tensor cores' tile and the tokens the narrow one
(16 to 128): reading ``w`` once at full speed is all that counts. Where there are few tiles, K is
cut into slices; each leaves its partial sums in float32, and the last program of a tile to arrive,
whoever that is, adds them up in the order of the slices. A second kernel would do the same for a
microsecond more per product.

Same bits: block sizes, slices and the order of every sum come from `skinny_table` by the shape of
``w``. The number of rows decides only how many tokens a tile is wide, and a column of a tile is
summed like any other. Columns past the last row are computed and not written.

Between FP8 products the tensor cores of sm_90 keep about 14 bits of a sum. So a tile of K, at most
256 wide, is summed by itself and added in float32: the error is below 2^-10 of ``sum |x w|``
however long K is, and far below that of the codes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED, e4m3_to_bf16, row_amax, scale_of, to_bf16, to_e4m3
from kernels.silu_mul_quant import silu_mul

_PREFETCH = tl.constexpr("""{
    .reg .pred some;
    mov.u32 $0, 0;
    setp.gt.s32 some, $2, 0;
    @some cp.async.bulk.prefetch.L2.global [$1], $2;
}""")


@triton.jit
def _finish(
    total,
    out,
    w_scale,
    x_scale,
    bias,
    residual,
    n,
    m,
    M,
    N,
    W_SCALED: tl.constexpr,
    X_SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BF16_OUT: tl.constexpr,
):
    if W_SCALED:
        total *= tl.load(w_scale + n, mask=n < N, other=0.0)[:, None]
    if X_SCALED:
        total *= tl.load(x_scale + m, mask=m < M, other=0.0)[None, :]
    if BIASED:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    result = tl.trans(total)
    at = m[:, None].to(tl.int64) * N + n[None, :]
    inside = (m[:, None] < M) & (n[None, :] < N)
    if RESIDUAL:
        result += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if BF16_OUT:
        tl.store(out + at, to_bf16(result), mask=inside)
    else:
        tl.store(out + at, result, mask=inside)


# Not for each kind of M: one machine code for all rows of a tile's width.
@triton.jit(do_not_specialize=["M"])
def skinny(
    x,
    w,
    w_start,
    out,
    w_scale,
    x_scale,
    bias,
    residual,
    partials,
    arrivals,
    M,
    N,
    K,
    x_stride,
    OPERANDS: tl.constexpr,
    SILU_MUL: tl.constexpr,
    W_SCALED: tl.constexpr,
    X_SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BF16_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    n_tile = tl.program_id(0)
    piece = tl.program_id(1)
    m_tile = tl.program_id(2)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    # Rows past the end read the last one: no mask on what is most of the traffic.
    if not TMA:
        w_at = w + tl.minimum(n, N - 1)[:, None].to(tl.int64) * K + k[None, :]
    x_at = x + tl.minimum(m, M - 1)[None, :].to(tl.int64) * x_stride + k[:, None]

    steps = tl.cdiv(K, BLOCK_K)
    per_piece = tl.cdiv(steps, SPLITS)
    first = piece * per_piece
    last = tl.minimum(first + per_piece, steps)
    if AHEAD > 0:
        # Weights come from no kernel before: they may be on their way while it still runs.
        tl.extra.cuda.gdc_launch_dependents()
        start = first * BLOCK_K
        rows = w_start + tl.minimum(n, N - 1).to(tl.int64) * K + start
        _bring_near(rows, tl.minimum(AHEAD, tl.minimum(last * BLOCK_K, K) - start))
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(first, last):
        start = step * BLOCK_K
        inside = start + k < K
        if TMA:
            w_tile = w.load([n_tile * BLOCK_N, start])
        elif EVEN_K:
            w_tile = tl.load(w_at + start, eviction_policy="evict_first")
        else:
            w_tile = tl.load(w_at + start, mask=inside[None, :], other=0.0)
        if EVEN_K:
            x_tile = tl.load(x_at + start)
        else:
            x_tile = tl.load(x_at + start, mask=inside[:, None], other=0.0)
        if SILU_MUL:
            if EVEN_K:
                up = tl.load(x_at + K + start)
            else:
                up = tl.load(x_at + K + start, mask=inside[:, None], other=0.0)
            product = silu_mul(x_tile.to(tl.float32), up.to(tl.float32))
            if OPERANDS == "fp8":
                scale, reciprocal = scale_of(row_amax(product, 0))
                codes = to_e4m3(product * reciprocal[None, :])
                part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
                total += _dot(w_tile, codes, part, OPERANDS) * scale[None, :]
            else:
                total = _dot(w_tile, to_bf16(product), total, OPERANDS)
        else:
            total = _dot(w_tile, x_tile, total, OPERANDS)

    if SPLITS == 1:
        _finish(
            total, out, w_scale, x_scale, bias, residual, n, m, M, N,
            W_SCALED, X_SCALED, BIASED, RESIDUAL, BF16_OUT,
        )  # fmt: skip
    else:
        tile = m_tile * tl.num_programs(0) + n_tile
        inner = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        slices = partials + tile.to(tl.int64) * SPLITS * BLOCK_N * BLOCK_M + inner
        tl.store(slices + piece * BLOCK_N * BLOCK_M, total)
        # Every thread's part must be there before the one that counts says so.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            total = tl.load(slices, cache_modifier=".cg")
            for other in tl.static_range(1, SPLITS):
                total += tl.load(slices + other * BLOCK_N * BLOCK_M, cache_modifier=".cg")
            tl.store(arrivals + tile, 0)
            _finish(
                total, out, w_scale, x_scale, bias, residual, n, m, M, N,
                W_SCALED, X_SCALED, BIASED, RESIDUAL, BF16_OUT,
            )  # fmt: skip


@triton.jit
def _bring_near(addresses, count):
    """Start loading ``count`` values from each address into the cache that all processors share."""
    size = count * (addresses.dtype.element_ty.primitive_bitwidth // 8)
    tl.inline_asm_elementwise(
        _PREFETCH,
        "=r,l,r",
        [addresses.to(tl.int64), tl.zeros(addresses.shape, tl.int32) + size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _dot(w_tile, x_tile, total, OPERANDS: tl.constexpr):
    """``total + w_tile x_tile``; E4M3 beside bfloat16 becomes bfloat16, exactly.

    The interpreter's own product sums in an order that depends on the width of the tile. Sums of
    FP8 are added outside of ``tl.dot``: with ``max_num_imprecise_acc`` Triton 3.7 adds them before
    it has waited for them.
    """
    if INTERPRETED:
        terms = w_tile.to(tl.float32)[:, :, None] * x_tile.to(tl.float32)[None, :, :]
        return total + tl.sum(terms, 1)
    elif OPERANDS == "fp8":
        return total + tl.dot(w_tile, x_tile)
    elif OPERANDS == "w8a16":
        return tl.dot(e4m3_to_bf16(w_tile), x_tile, total)
    else:
        return tl.dot(w_tile, x_tile, total)
