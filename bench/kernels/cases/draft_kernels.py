"""A draft's pass: attention over its memory, and guesses, beside the library's operations."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.kernels.case import OURS, Case, Findings, Prepared
from kernels.best_guesses import BEST, best_guesses, best_guesses_reference
from kernels.slot_attention import SlotParts, slot_attention, slot_attention_reference
from kernels.slot_rows import SlotRows

_HEADS = 9, 3, 64  # of a draft of SmolLM2-135M
_IDS = 16_384
_LINE = 16
_LIBRARY = "library"


def cases() -> list[Case]:
    _, kv_heads, head_dim = _HEADS
    found = []
    for rows, context in ((1, 256), (8, 256), (64, 256), (8, 2048), (8, 8000)):
        moved = 4 * rows * context * kv_heads * head_dim
        prepare = partial(prepare_attention, _HEADS, rows, context)
        found.append(Case("slot_attention", f"draft, {rows} x {context}", moved, prepare))
    for rows in (1, 8, 64):
        for heat in (0.0, 1.0):
            guesses = partial(prepare_guesses, rows, _IDS, heat)
            found.append(
                Case("best_guesses", f"draft, {rows} rows, T = {heat}", 2 * rows * _IDS, guesses)
            )
    return found


def prepare_attention(
    heads: tuple[int, int, int], rows: int, context: int, device: torch.device
) -> Prepared:
    """Each row at the end of its own text; what it reads is in the cache, as in a pass."""
    query_heads, kv_heads, head_dim = heads
    own = torch.arange(rows, device=device) * context
    table = torch.zeros(rows, 5 + _LINE, dtype=torch.int64, device=device)
    table[:, 0], table[:, 1], table[:, 2] = context - 1, own + context - 1, own
    table[:, 3] = context
    position, slot, first, seen, depth = table[:, :5].unbind(1)
    given = SlotRows(position, slot, first, seen, depth, table[:, 5:])
    qkv = _random(rows, (query_heads + 2 * kv_heads) * head_dim, device=device)
    memory = _random(2, kv_heads, rows * context, head_dim, device=device)
    parts = SlotParts.empty(rows, query_heads, kv_heads, head_dim, device)
    read = (own[:, None] + torch.arange(context, device=device)).view(-1)

    def library(_: int) -> Tensor:
        gathered = memory.index_select(2, read).view(2, kv_heads, rows, -1, head_dim)
        keys, values = gathered.transpose(1, 2).unbind()
        q = qkv[:, : query_heads * head_dim].view(rows, kv_heads, -1, head_dim)
        return scaled_dot_product_attention(q, keys, values, scale=1.0).reshape(rows, -1)

    def check() -> Findings:
        found = slot_attention(qkv, given, memory, parts)
        wrong = (found - slot_attention_reference(qkv, given, memory)).abs().max().item()
        return {"largest error": wrong, "errors within 0.02": wrong < 0.02}

    ours = partial(slot_attention, qkv, given, memory, parts)
    return Prepared({OURS: lambda _: ours(), _LIBRARY: library}, 2, check)


def prepare_guesses(rows: int, columns: int, heat: float, device: torch.device) -> Prepared:
    logits, ids = 3 * _random(rows, columns, device=device), torch.arange(columns, device=device)
    keys = torch.arange(rows, device=device) * 0x9E3779B1 % 2**32
    heats = torch.full((rows,), heat, dtype=torch.float64, device=device)

    def library(_: int) -> Tensor:
        scores = logits.float()
        places = torch.topk(scores, BEST.value).indices
        shares = torch.softmax(scores, dim=-1).gather(-1, places)
        return torch.stack((ids[places].float(), shares), dim=1)

    def check() -> Findings:
        ours = best_guesses(logits, ids, keys, heats)
        exact = best_guesses_reference(logits, ids, keys, heats)
        wrong = (ours[:, 1] - exact[:, 1]).abs().max().item()
        return {"largest error of a share": wrong, "errors within 1e-5": wrong < 1e-5}

    ours = partial(best_guesses, logits, ids, keys, heats)
    contestants = {OURS: lambda _: ours()}
    if not heat:
        contestants[_LIBRARY] = library
    return Prepared(contestants, 2, check)


def _random(*shape: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=device).bfloat16()
