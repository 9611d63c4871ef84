"""Kernels of a draft's pass, with tensors on the CPU, to be compiled only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from kernels.best_guesses import best_guesses
from kernels.embed_norm import embed_norm
from kernels.rope_kv_write import HeadNorms
from kernels.rope_slot_write import rope_slot_write
from kernels.slot_attention import SlotParts, slot_attention
from kernels.slot_rows import SlotRows
from kernels.swiglu import swiglu

_SHAPES = ((9, 3, 64), (28, 4, 128), (14, 2, 64))


def draft_launches() -> Iterator[tuple[str, Callable[[], object]]]:
    table = torch.zeros(1, 42, dtype=torch.int64)
    rows = SlotRows(*table[:, :5].unbind(1), table[:, 10:])
    for heads, kv_heads, head_dim in _SHAPES:
        name = f"draft {heads}/{kv_heads} x {head_dim}"
        qkv = torch.zeros(1, (heads + 2 * kv_heads) * head_dim).bfloat16()
        memory = torch.zeros(2, kv_heads, 16, head_dim).bfloat16()
        turns = torch.zeros(16, head_dim // 2, 2)
        parts = SlotParts.empty(1, heads, kv_heads, head_dim, torch.device("cpu"))
        yield f"{name}, attention", partial(slot_attention, qkv, rows, memory, parts)
        norms = HeadNorms(torch.zeros(heads + kv_heads, head_dim), 1e-5)
        turn = partial(rope_slot_write, qkv, turns, rows, memory)
        yield f"{name}, rope", turn
        yield f"{name}, rope and norms", partial(turn, norms)
    yield "embed_norm", partial(embed_norm, torch.zeros(9, 576).bfloat16(), table[:, 0], 1e-5)
    yield "swiglu", partial(swiglu, torch.zeros(2, 3072).bfloat16())
    heat = table.view(torch.float64)[:, 8]
    for columns in (16_384, 128_256, 40):
        logits, ids = torch.zeros(1, columns).bfloat16(), torch.arange(columns)
        yield f"guesses of {columns}", partial(best_guesses, logits, ids, table[:, 7], heat)
