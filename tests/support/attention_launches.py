"""Attention and what stands around it, with tensors on the CPU, to be compiled only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.kernels.case import OURS
from bench.kernels.cases import kv_kernels
from bench.kernels.paged_trees import PagedTrees, make_pool, make_step
from foredraft.engine.fp8.inputs import Inputs
from kernels.attention_tiles import choose_splits
from kernels.kv_layout import BLOCK, KVPool
from kernels.prompt_attention import ROWS, prompt_attention
from kernels.tree_attention import tree_attention
from kernels.tree_attention_combine import Partials
from kernels.widen_kv import room_for

_CPU = torch.device("cpu")
_SHAPES = ((32, 8, 128), (28, 4, 128), (9, 3, 64))
_CONTEXT = 32768


def attention_launches() -> Iterator[tuple[str, Callable[[], object]]]:
    for heads, kv_heads, head_dim in _SHAPES:
        for slots in (1, 2):
            trees = PagedTrees(heads, kv_heads, head_dim, (100,) * slots, (2,) * slots)
            yield f"attention {heads}/{kv_heads} x {head_dim}, {slots}", _attention(trees)
        yield f"prompt {heads}/{kv_heads} x {head_dim}", _prompt(heads, kv_heads, head_dim)
    heads = kv_kernels.Heads(32, 8, 128)
    for name, prepared in {
        "rope_kv_write": kv_kernels.prepare_rope(heads, 2, _CPU),
        "rope_kv_write, many rows": kv_kernels.prepare_rope(heads, 200, _CPU),
        "kv_compact": kv_kernels.prepare_compact(heads, 2, 1, _CPU),
        "build_inputs": kv_kernels.prepare_inputs(2, _CPU),
    }.items():
        yield name, partial(prepared.contestants[OURS], 0)


def _prompt(heads: int, kv_heads: int, head_dim: int) -> Callable[[], object]:
    inputs = Inputs.empty(1, 2 * ROWS, _CONTEXT // BLOCK, _CPU)
    layer = KVPool.empty(1, kv_heads, 1, head_dim, _CPU).layer(0)
    q = torch.zeros(2 * ROWS, heads, head_dim, dtype=torch.bfloat16)
    widened = room_for(layer, inputs.tables.shape[1])
    return partial(prompt_attention, q, layer, inputs.tables, inputs.rows, widened, q)


def _attention(trees: PagedTrees) -> Callable[[], object]:
    layer, step = make_pool(trees, 1, _CPU).layer(0), make_step(trees, _CPU)
    most, (rows, heads, head_dim) = choose_splits(trees.kv_heads), step.q.shape
    partials = Partials.empty(most, rows, heads, head_dim, _CPU)
    inputs = step.q, layer, step.tables, step.rows, step.path, partials, torch.empty_like(step.q)
    return partial(tree_attention, *inputs, trees.most_rows, _CONTEXT)
