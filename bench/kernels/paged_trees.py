"""Random token trees over random contexts in E4M3, as the kernels of a step find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.kv_layout import BLOCK, KVLayer, KVPool
from kernels.tree_layout import StepRows

_NEAREST = 4  # a node's parent is one of so many rows before it
_EXPONENTS = (-10, -7)


@dataclass(frozen=True, slots=True)
class PagedTrees:
    """contexts: committed tokens of each sequence. rows: of each tree, root included."""

    heads: int
    kv_heads: int
    head_dim: int
    contexts: Sequence[int]
    rows: Sequence[int]

    @property
    def most_rows(self) -> int:
        return max(self.rows)

    @property
    def most_context(self) -> int:
        return max(context + rows for context, rows in zip(self.contexts, self.rows, strict=True))

    @property
    def kv_bytes(self) -> int:
        """Codes and exponents of everything committed."""
        return 2 * self.kv_heads * sum(self.contexts) * (self.head_dim + 1)


@dataclass(frozen=True, slots=True)
class Step:
    """What `kernels.tree_attention` reads beside a layer."""

    q: Tensor
    tables: Tensor
    rows: StepRows
    path: Tensor


def make_pool(trees: PagedTrees, layers: int, device: torch.device) -> KVPool:
    """Random codes, none of them NaN, of about a model's sizes."""
    pool = KVPool.empty(layers, trees.kv_heads, sum(_blocks(trees)), trees.head_dim, device)
    random = torch.Generator(device).manual_seed(0)
    codes = pool.codes.view(torch.uint8)
    torch.randint(0x7F, codes.shape, out=codes, generator=random, device=device)
    codes[..., ::2] |= 0x80
    torch.randint(*_EXPONENTS, codes.shape[:5], out=pool.exponents, generator=random, device=device)
    return pool


def make_step(trees: PagedTrees, device: torch.device) -> Step:
    """Blocks lie in any order."""
    random = torch.Generator().manual_seed(1)
    slots, count = len(trees.rows), sum(trees.rows)
    sizes = _blocks(trees)
    order = torch.randperm(sum(sizes), generator=random, dtype=torch.int32)
    tables = torch.zeros(slots, max(sizes), dtype=torch.int32)
    rows = StepRows.empty(slots, count, torch.device("cpu"))
    path = torch.zeros(count, trees.most_rows, dtype=torch.int32)
    for slot, blocks in enumerate(order.split(sizes)):
        tables[slot, : len(blocks)] = blocks
        first = sum(trees.rows[:slot])
        rows.start[slot], rows.count[slot] = first, trees.rows[slot]
        for local in range(trees.rows[slot]):
            parent = max(local - 1 - int(torch.randint(_NEAREST, (), generator=random)), 0)
            line = [*path[first + parent, : rows.depth[first + parent] + 1].tolist(), local]
            line = line if local else [0]
            path[first + local, : len(line)] = torch.tensor(line)
            rows.slot[first + local], rows.depth[first + local] = slot, len(line) - 1
            rows.position[first + local] = trees.contexts[slot] + len(line) - 1
    q = torch.randn(count, trees.heads, trees.head_dim, generator=random).bfloat16()
    on_device = (getattr(rows, name).to(device) for name in StepRows.__slots__)
    return Step(q.to(device), tables.to(device), StepRows(*on_device), path.to(device))


def plain_twin(step: Step, layer: KVLayer, row: int) -> tuple[Step, KVLayer]:
    """The same token decoded plainly, and a copy of the layer where its ancestors are committed."""
    slot, depth = int(step.rows.slot[row]), int(step.rows.depth[row])
    position = int(step.rows.position[row])
    at = torch.stack((step.path[row, : depth + 1].cpu(), torch.arange(depth + 1)))
    at += position - depth
    table = step.tables[slot].cpu().long()
    source, target = (table[at // BLOCK] * BLOCK + at % BLOCK).to(step.q.device)
    twin = KVLayer(layer.codes.clone(), layer.exponents.clone())
    for part in (twin.codes.view(torch.uint8), twin.exponents):
        places = part.flatten(2, 3)
        places[:, :, target] = places[:, :, source]
    rows = StepRows.empty(1, 1, step.q.device)
    rows.count[0], rows.slot[0], rows.position[0] = 1, 0, position
    return Step(
        step.q[row : row + 1], step.tables[slot : slot + 1], rows, step.path[row : row + 1]
    ), twin


def _blocks(trees: PagedTrees) -> list[int]:
    """Of each sequence."""
    pairs = zip(trees.contexts, trees.rows, strict=True)
    return [-(-(context + rows) // BLOCK) for context, rows in pairs]
