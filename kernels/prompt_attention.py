"""Attention of a chunk of a prompt: rows of one sequence, each of which sees all before it.

``out = softmax(q K^T / sqrt(head_dim)) V`` over the positions up to a row's own, the chunk's own
rows among them. Unlike the rows of a tree those of a chunk stand at a fixed place, so nothing has
to be cut by a row's position: keys and values are widened once for all rows
(`kernels.widen_kv`), and a program takes ROWS rows of one head from the first position on.

**The same bits at the same place.** What a row is summed with, and in which order, follows from its
position as long as chunks begin at multiples of ROWS: neither the length of the chunk, nor the rows
behind it, nor what stands in the memory behind them is felt.

Both products take bfloat16, which holds widened codes exactly, and sum in float32. Against float64
on the same keys and values the error is at most 2^-8 sum_i P_i |v_i|, and 2^-8 |out| for the
rounding of ``out``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import INTERPRETED, to_bf16
from kernels.kv_layout import KVLayer, check_layer
from kernels.tree_layout import StepRows
from kernels.widen_kv import widen_kv

ROWS = 64  # of a program; chunks begin at multiples of it
_LOG2_E = 1.4426950408889634
_TOKENS, _TOKENS_WIDTH = 64, 128  # of a turn, with heads of up to so many numbers


def prompt_attention(
    q: Tensor, layer: KVLayer, tables: Tensor, rows: StepRows, widened: Tensor, out: Tensor
) -> None:
    """Attend in one layer, whose entries of this chunk are written.

    Args:
        q: bfloat16 [rows, heads, head_dim]; of row i, which stands at the first row's position + i.
        tables: int32 [1, blocks]: the block table.
        rows: of the chunk: its first position, and the count of rows that are no padding.
        widened: room for all that the table holds, as `widen_kv` says.
        out: bfloat16 [rows, heads, head_dim]; padding rows hold anything.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    _check(q, layer, tables, rows, out)
    widen_kv(layer, tables, rows, widened)
    count, heads, head_dim = q.shape
    width = widened.shape[3]
    prompt_attention_kernel[(triton.cdiv(count, ROWS), heads)](
        q,
        widened,
        rows.position,
        rows.count,
        out,
        head_dim**-0.5 * _LOG2_E,
        count,
        heads,
        widened.shape[2],
        GROUP=heads // layer.codes.shape[1],
        HEAD_DIM=head_dim,
        WIDTH=width,
        ROWS=ROWS,
        TOKENS=_TOKENS * _TOKENS_WIDTH // max(width, _TOKENS_WIDTH),
        num_warps=4,
        num_stages=3,
    )


@triton.jit(do_not_specialize=["rows"])
def prompt_attention_kernel(
    q, widened, position, used, out, scale, rows, heads, room,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One program per ROWS rows and head, those that see most first."""
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    start, count = tl.load(position), tl.load(used)
    if tile * ROWS < count:
        row, lane = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        inside = (row < rows)[:, None] & (lane < HEAD_DIM)[None, :]
        at = (row[:, None] * heads + head) * HEAD_DIM + lane[None, :]
        queries = _operand(tl.load(q + at, mask=inside, other=0.0))
        plane = (head // GROUP).to(tl.int64) * room * WIDTH
        keys = widened + plane
        values = widened + (heads // GROUP).to(tl.int64) * room * WIDTH + plane
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        summed = tl.zeros([ROWS, WIDTH], tl.float32)
        first = start + tile * ROWS
        whole = first // TOKENS * TOKENS
        end = tl.minimum(first + ROWS, start + count)
        for token in tl.range(0, whole, TOKENS):
            top, total, summed = _add_tokens(
                top, total, summed, queries, keys, values, token, start + row, scale,
                False, WIDTH, TOKENS,
            )  # fmt: skip
        for token in tl.range(whole, end, TOKENS, num_stages=1):
            top, total, summed = _add_tokens(
                top, total, summed, queries, keys, values, token, start + row, scale,
                True, WIDTH, TOKENS,
            )  # fmt: skip
        tl.store(out + at, to_bf16(summed / total[:, None]), mask=inside)


@triton.jit
def _add_tokens(
    top, total, summed, queries, keys, values, first, last, scale,
    MASKED: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The state with tokens more, from ``first`` on; rows see up to ``last``."""
    token = tl.multiple_of(first, TOKENS) + tl.arange(0, TOKENS)
    at = token[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    scores = tl.dot(queries, tl.trans(_operand(tl.load(keys + at))))
    if MASKED:
        scores = tl.where(token[None, :] <= last[:, None], scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores * scale - (highest * scale)[:, None])
    fading = tl.exp2((top - highest) * scale)
    total = total * fading + tl.sum(weights, 1)
    v = _operand(tl.load(values + at))
    summed = tl.dot(_operand(weights), v, summed * fading[:, None])
    return highest, total, summed


@triton.jit
def _operand(x):
    """As products take it: the interpreter has none of bfloat16."""
    if INTERPRETED:
        return x.to(tl.float32)
    else:
        return x.to(tl.bfloat16)


def _check(q: Tensor, layer: KVLayer, tables: Tensor, rows: StepRows, out: Tensor) -> None:
    check_layer(layer)
    count, heads = q.shape[:2]
    _, kv_heads, _, _, head_dim = layer.codes.shape
    if heads % kv_heads:
        raise ValueError(f"heads of q must be a multiple of the {kv_heads} KV heads, not {heads}")
    check_tensor("q", q, (count, heads, head_dim), torch.bfloat16)
    check_tensor("out", out, q.shape, torch.bfloat16)
    check_tensor("tables", tables, (1, tables.shape[-1]), torch.int32)
    check_tensor("rows.position", rows.position, (count,), torch.int32)
    check_tensor("rows.count", rows.count, (1,), torch.int32)
