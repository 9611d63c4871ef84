"""Attention of a launch of a prompt, beside the library's over bfloat16 that is not paged.

Both have as many multiplications: those of every row with all before it. Ours widens keys and
values first, which is part of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from foredraft.engine.fp8.inputs import Inputs
from kernels.kv_layout import BLOCK, KVLayer, KVPool
from kernels.prompt_attention import prompt_attention
from kernels.tree_attention import tree_attention_reference
from kernels.widen_kv import room_for

LIBRARY = "library"

_HEADS = (32, 8, 128)  # query heads, KV heads, numbers
_ROWS = (256, 1024)
_STARTS = (0, 8192)
_CHECKED = 40  # rows; the reference takes one after another
_BOUND = 2**-7  # of weights that are rounded to bfloat16, and of the result


def cases() -> list[Case]:
    _, kv_heads, head_dim = _HEADS
    return [
        Case(
            kernel="prompt_attention",
            shape=f"{rows} rows behind {start}",
            moved_bytes=2 * kv_heads * (head_dim + 1) * (start + rows),
            prepare=partial(prepare, _HEADS, rows, start),
            goals={LIBRARY: 1.0},
        )
        for start in _STARTS
        for rows in _ROWS
    ]


def prepare(sizes: tuple[int, int, int], rows: int, start: int, device: torch.device) -> Prepared:
    heads, kv_heads, head_dim = sizes
    blocks = -(-(start + rows) // BLOCK)
    copies = copies_for(2 * kv_heads * (head_dim + 1) * (start + rows))
    pool = KVPool.empty(copies, kv_heads, blocks + 1, head_dim, device)
    pool.codes.copy_(torch.randn(pool.codes.shape[1:], device=device).to(pool.codes.dtype))
    inputs = Inputs.empty(1, rows, blocks, device)
    inputs.fill_chunk((1 + torch.randperm(blocks)).tolist(), [0] * rows, start)
    q = torch.randn(rows, heads, head_dim, device=device).bfloat16()
    out, widened = torch.empty_like(q), room_for(pool.layer(0), blocks)

    def ours(copy: int) -> object:
        layer = pool.layer(copy)
        prompt_attention(q, layer, inputs.tables, inputs.rows, widened, out)
        return out

    contestants: dict[str, Callable[[int], object]] = {OURS: ours}
    if device.type == "cuda":
        shape = (2, 1, heads, start + rows, head_dim)
        keys, values = torch.randn(shape, dtype=torch.bfloat16, device=device)
        queries, seen = q.transpose(0, 1)[None].contiguous(), causal_lower_right(rows, start + rows)
        contestants[LIBRARY] = lambda _: scaled_dot_product_attention(queries, keys, values, seen)
    return Prepared(contestants, copies, lambda: _check(q, pool.layer(0), inputs, ours(0)))


def _check(q: torch.Tensor, layer: KVLayer, inputs: Inputs, out: object) -> Findings:
    assert isinstance(out, torch.Tensor)
    last = slice(len(q) - _CHECKED, len(q))
    few = Inputs.empty(1, _CHECKED, inputs.tables.shape[1], q.device)
    few.rows.slot.fill_(0)
    few.rows.depth.fill_(0)
    few.rows.position.copy_(inputs.rows.position[last])
    exact = tree_attention_reference(q[last], layer, inputs.tables, few.rows, few.path)
    sizes = KVLayer(layer.codes.clone(), layer.exponents)
    sizes.codes.view(torch.uint8)[1] &= 0x7F
    mean = tree_attention_reference(q[last], sizes, inputs.tables, few.rows, few.path)
    error = ((out[last].double() - exact).abs() / mean).amax()
    return {
        "largest error, of the mean size of values": error.item(),
        "errors within the bound": error.item() <= _BOUND,
    }
