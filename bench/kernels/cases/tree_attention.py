"""Tree attention over E4M3 beside the library's attentions over bfloat16 that is not paged.

`SDPA` takes a tree as a mask over everything, `FLEX` as a compiled one; neither takes trees of
different sizes in one call, and a row's bits depend on its company in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from bench.kernels.paged_trees import PagedTrees, Step, make_pool, make_step, plain_twin
from kernels.attention_tiles import choose_splits
from kernels.kv_layout import KVLayer
from kernels.tree_attention import tree_attention, tree_attention_reference
from kernels.tree_attention_combine import Partials

SDPA, FLEX = "sdpa", "flex"

_CONTEXTS = {"2k": 2048, "32k": 32768}
# Times of one row that a tree may take at 32k, by its rows.
_FLAT = {8: 1.15, 24: 1.35, 64: 2.2}
_RAGGED = (1, 2, 3, 5, 8, 12, 16, 24)
_BOUND = 2**-11 + 2**-8  # of weights that are rounded to float16, and of the result


def cases() -> list[Case]:
    single = [
        Case(
            kernel="tree_attention",
            shape=_shape(rows, name),
            moved_bytes=_trees([context], [rows]).kv_bytes,
            prepare=partial(prepare, _trees([context], [rows])),
            goals={SDPA: 1.0, FLEX: 1.0},
            of_copy=0.8 if (rows, name) == (1, "32k") else 0.0,
            flat={_shape(1, name): _FLAT[rows]} if name == "32k" and rows > 1 else {},
        )
        for name, context in _CONTEXTS.items()
        for rows in (1, *_FLAT)
    ]
    batches = [
        Case(
            kernel="tree_attention",
            shape=f"{shape}, {name} each",
            moved_bytes=_trees([context] * len(rows), rows).kv_bytes,
            prepare=partial(prepare, _trees([context] * len(rows), rows)),
        )
        for name, context in _CONTEXTS.items()
        for shape, rows in {"8 trees of 1 to 24 rows": _RAGGED, "16 rows": (1,) * 16}.items()
    ]
    return single + batches


def prepare(trees: PagedTrees, device: torch.device) -> Prepared:
    copies = copies_for(trees.kv_bytes)
    pool, step = make_pool(trees, copies, device), make_step(trees, device)
    ours = _launch(trees, step)
    contestants: dict[str, Callable[[int], object]] = {OURS: lambda copy: ours(pool.layer(copy))}
    if len(trees.rows) == 1 and device.type == "cuda":
        contestants |= _libraries(trees, step, copies)
    return Prepared(contestants, copies, partial(_check, trees, step, pool.layer(0)))


def _trees(contexts: list[int], rows: list[int] | tuple[int, ...]) -> PagedTrees:
    """Of a model with eight KV heads."""
    return PagedTrees(heads=32, kv_heads=8, head_dim=128, contexts=contexts, rows=rows)


def _shape(rows: int, context: str) -> str:
    return f"{rows} rows, {context} context" if rows > 1 else f"1 row, {context} context"


def _launch(trees: PagedTrees, step: Step) -> Callable[[KVLayer], Tensor]:
    """Attention with memory of its own for what is in between and for what comes out."""
    most, (rows, heads, head_dim) = choose_splits(trees.kv_heads), step.q.shape
    partials = Partials.empty(most, rows, heads, head_dim, step.q.device)
    out = torch.zeros_like(step.q)

    def launch(layer: KVLayer) -> Tensor:
        inputs = step.q, layer, step.tables, step.rows, step.path
        tree_attention(*inputs, partials, out, trees.most_rows, trees.most_context)
        return out

    return launch


def _check(trees: PagedTrees, step: Step, layer: KVLayer) -> Findings:
    out = _launch(trees, step)(layer)
    exact = tree_attention_reference(step.q, layer, step.tables, step.rows, step.path)
    sizes = KVLayer(layer.codes.clone(), layer.exponents)
    sizes.codes.view(torch.uint8)[1] &= 0x7F
    mean = tree_attention_reference(step.q, sizes, step.tables, step.rows, step.path)
    error = ((out.double() - exact).abs() / mean).amax()
    deepest = int(step.rows.depth.argmax())
    return {
        "largest error, of the mean size of values": error.item(),
        "errors within the bound": error.item() <= _BOUND,
        "the bits of plain decoding": all(
            torch.equal(_decoded(trees, step, layer, row), out[row])
            for row in {0, deepest, len(out) // 2, len(out) - 1}
        ),
    }


def _decoded(trees: PagedTrees, step: Step, layer: KVLayer, row: int) -> Tensor:
    twin, moved = plain_twin(step, layer, row)
    alone = PagedTrees(
        trees.heads, trees.kv_heads, trees.head_dim, [int(step.rows.position[row])], [1]
    )
    return _launch(alone, twin)(moved)[0]


def _libraries(trees: PagedTrees, step: Step, copies: int) -> dict[str, Callable[[int], object]]:
    """The library's attentions, with keys and values of the step behind the context."""
    (context,), (rows,) = trees.contexts, trees.rows
    device = step.q.device
    entries = context + rows
    shape = (copies, 2, 1, trees.kv_heads, entries, trees.head_dim)
    kv = torch.randn(shape, dtype=torch.bfloat16, device=device)
    q = step.q.transpose(0, 1)[None].contiguous()
    seen = torch.zeros(rows, entries, dtype=torch.bool, device=device)
    seen[:, :context] = True
    for row in range(rows):
        seen[row, context + step.path[row, : step.rows.depth[row] + 1].long()] = True
    mask = create_block_mask(lambda b, h, row, entry: seen[row, entry], None, None, rows, entries)
    compiled = torch.compile(flex_attention, dynamic=False)

    def sdpa(copy: int) -> object:
        keys, values = kv[copy]
        return scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)

    def flex(copy: int) -> object:
        keys, values = kv[copy]
        return compiled(q, keys, values, block_mask=mask, enable_gqa=True)

    return {SDPA: sdpa, FLEX: flex}
