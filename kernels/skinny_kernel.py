"""``out = x w^T`` for few rows of ``x``: what the three skinny products share.

The weights ``w [N, K]`` are the tall side of the tensor cores' tile and the tokens the narrow one
(16 to 128): reading ``w`` once at full speed is all that counts. Blocks are powers of two; a
program may have two of them, of BLOCK_M and of TAIL_M tokens, for the weights that it has read
once. Where there are few tiles, K is cut into slices; each leaves its partial sums in float32, and
the last program of a tile to arrive, whoever that is, adds them up in the order of the slices. A
second kernel would do the same for a microsecond more per product.

Same bits: block sizes, slices and the order of every sum come from `skinny_table` by the shape of
``w``. The number of rows decides only how many tokens a tile is wide and how many weight rows it is
high, and a column of a tile is summed like any other. Columns past the last row are neither read
nor written.

Between FP8 products the tensor cores of sm_90 keep about 14 bits of a sum and cut off the rest, 32
columns at a time. So a tile of K is summed by itself and added in float32: the error is below 2^-10
of ``sum |x w|`` for tiles of 128 columns and 2^-8 for those of 256, which is the most, however long
K is, and far below that of the codes. (On an H200, where nothing cancels: 0.0008 and 0.0026.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED, e4m3_to_bf16, row_amax, scale_of, to_bf16, to_e4m3
from kernels.early_start import begin, bring_near, let_next_in
from kernels.silu_mul_quant import silu_mul


@triton.jit
def _finish(
    total,
    out,
    by_row,
    by_token,
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
        total *= by_row[:, None]
    if X_SCALED:
        total *= by_token[None, :]
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


@triton.jit
def _multiply(
    w_tile,
    x_at,
    there,
    total,
    K,
    OPERANDS: tl.constexpr,
    SILU_MUL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """``total`` and the products of a tile of weights with the tokens that lie at ``x_at``."""
    x_tile = tl.load(x_at, mask=there, other=0.0)
    if SILU_MUL:
        up = tl.load(x_at + K, mask=there, other=0.0)
        product = silu_mul(x_tile.to(tl.float32), up.to(tl.float32))
        if OPERANDS == "fp8":
            scale, reciprocal = scale_of(row_amax(product, 0))
            codes = to_e4m3(product * reciprocal[None, :])
            part = tl.zeros([BLOCK_N, TOKENS], tl.float32)
            total += _dot(w_tile, codes, part, OPERANDS) * scale[None, :]
        else:
            total = _dot(w_tile, to_bf16(product), total, OPERANDS)
    else:
        total = _dot(w_tile, x_tile, total, OPERANDS)
    return total


@triton.jit
def _inner(BLOCK_N: tl.constexpr, TOKENS: tl.constexpr):
    """Where the sums of a tile lie in a slice."""
    return tl.arange(0, BLOCK_N)[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]


@triton.jit
def _gathered(
    slices, SIZE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, TOKENS: tl.constexpr
):
    """The sums of all slices, in their order."""
    at = slices + _inner(BLOCK_N, TOKENS)
    total = tl.load(at, cache_modifier=".cg")
    for other in tl.static_range(1, SPLITS):
        total += tl.load(at + other * SIZE, cache_modifier=".cg")
    return total


# Not for each kind of these: one machine code for all rows of a tile's width.
@triton.jit(do_not_specialize=["M", "ahead", "lets_in_first"])
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
    ahead,
    lets_in_first,
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
    TAIL_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):
    n_tile = tl.program_id(0)
    piece = tl.program_id(1)
    m_tile = tl.program_id(2)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    # Weight rows past the end are the last one: no mask on what is most of the traffic.
    if not TMA:
        w_at = w + tl.minimum(n, N - 1)[:, None].to(tl.int64) * K + k[None, :]
    x_at = x + m[None, :].to(tl.int64) * x_stride + k[:, None]
    if TAIL_M > 0:
        tail_m = BLOCK_M + tl.arange(0, TAIL_M)
        tail_at = x + tail_m[None, :].to(tl.int64) * x_stride + k[:, None]

    steps = tl.cdiv(K, BLOCK_K)
    per_piece = tl.cdiv(steps, SPLITS)
    first = piece * per_piece
    last = tl.minimum(first + per_piece, steps)
    if EARLY:
        if lets_in_first > 0:
            let_next_in(EARLY)
        start = first * BLOCK_K
        columns = tl.minimum(ahead, tl.minimum(last * BLOCK_K, K) - start)
        rows = w_start + tl.minimum(n, N - 1).to(tl.int64) * K + start
        bring_near(rows, columns * (rows.dtype.element_ty.primitive_bitwidth // 8))
        begin(EARLY)
    # Scales come from memory, too: asked for now, they are there when the sums are.
    by_row, by_token = n, m
    if W_SCALED:
        by_row = tl.load(w_scale + n, mask=n < N, other=0.0)
    if X_SCALED:
        by_token = tl.load(x_scale + m, mask=m < M, other=0.0)
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if TAIL_M > 0:
        by_tail = tail_m
        if X_SCALED:
            by_tail = tl.load(x_scale + tail_m, mask=tail_m < M, other=0.0)
        tail = tl.zeros([BLOCK_N, TAIL_M], tl.float32)
    for step in tl.range(first, last):
        start = step * BLOCK_K
        inside = start + k < K
        there = (m < M)[None, :] if EVEN_K else (m < M)[None, :] & inside[:, None]
        if TMA:
            w_tile = w.load([n_tile * BLOCK_N, start])
        elif EVEN_K:
            w_tile = tl.load(w_at + start, eviction_policy="evict_first")
        else:
            w_tile = tl.load(w_at + start, mask=inside[None, :], other=0.0)
        total = _multiply(
            w_tile, x_at + start, there, total, K, OPERANDS, SILU_MUL, BLOCK_N, BLOCK_M
        )
        if TAIL_M > 0:
            there = (tail_m < M)[None, :] if EVEN_K else (tail_m < M)[None, :] & inside[:, None]
            tail = _multiply(
                w_tile, tail_at + start, there, tail, K, OPERANDS, SILU_MUL, BLOCK_N, TAIL_M
            )
    let_next_in(EARLY)

    if SPLITS == 1:
        _finish(
            total, out, by_row, by_token, bias, residual, n, m, M, N,
            W_SCALED, X_SCALED, BIASED, RESIDUAL, BF16_OUT,
        )  # fmt: skip
        if TAIL_M > 0:
            _finish(
                tail, out, by_row, by_tail, bias, residual, n, tail_m, M, N,
                W_SCALED, X_SCALED, BIASED, RESIDUAL, BF16_OUT,
            )  # fmt: skip
    else:
        MAIN: tl.constexpr = BLOCK_N * BLOCK_M
        SIZE: tl.constexpr = BLOCK_N * (BLOCK_M + TAIL_M)
        tile = m_tile * tl.num_programs(0) + n_tile
        slices = partials + tile.to(tl.int64) * SPLITS * SIZE
        tl.store(slices + piece * SIZE + _inner(BLOCK_N, BLOCK_M), total)
        if TAIL_M > 0:
            tl.store(slices + piece * SIZE + MAIN + _inner(BLOCK_N, TAIL_M), tail)
        # Every thread's part must be there before the one that counts says so.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            tl.store(arrivals + tile, 0)
            total = _gathered(slices, SIZE, SPLITS, BLOCK_N, BLOCK_M)
            _finish(
                total, out, by_row, by_token, bias, residual, n, m, M, N,
                W_SCALED, X_SCALED, BIASED, RESIDUAL, BF16_OUT,
            )  # fmt: skip
            if TAIL_M > 0:
                tail = _gathered(slices + MAIN, SIZE, SPLITS, BLOCK_N, TAIL_M)
                _finish(
                    tail, out, by_row, by_tail, bias, residual, n, tail_m, M, N,
                    W_SCALED, X_SCALED, BIASED, RESIDUAL, BF16_OUT,
                )  # fmt: skip
