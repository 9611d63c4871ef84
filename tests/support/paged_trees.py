"""Ragged token trees with keys and values of their own, laid out as the kernels want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kernels.kv_layout import BLOCK, KVLayer, KVPool, quantize_vectors_reference
from kernels.tree_layout import StepRows

_NAN_CODE = 0x7F


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Tree:
    """parents: local rows, -1 for the root, which comes first; no row: the slot takes no part.

    committed: [2, kv_heads, context, head_dim]. entries: [rows, 2, kv_heads, head_dim].
    q: [rows, heads, head_dim].
    """

    parents: tuple[int, ...]
    committed: Tensor
    entries: Tensor
    q: Tensor

    @property
    def context(self) -> int:
        return self.committed.shape[2]

    def path(self, row: int) -> list[int]:
        above = self.parents[row]
        return [*self.path(above), row] if above >= 0 else [row]


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that a step's attention reads."""

    q: Tensor
    layer: KVLayer
    tables: Tensor
    rows: StepRows
    path: Tensor


def random_tree(
    shape: Shape, context: int, parents: Sequence[int], random: torch.Generator
) -> Tree:
    """Keys and values whose sizes differ from token to token."""

    def vectors(*size: int) -> Tensor:
        sizes = torch.randn(*size[:-1], 1, generator=random).exp()
        return torch.randn(*size, generator=random) * sizes

    rows, heads = len(parents), shape.kv_heads
    return Tree(
        tuple(parents),
        vectors(2, heads, context, shape.head_dim),
        vectors(rows, 2, heads, shape.head_dim),
        torch.randn(rows, shape.heads, shape.head_dim, generator=random).bfloat16(),
    )


def random_parents(rows: int, random: torch.Generator) -> tuple[int, ...]:
    """A root and nodes below any earlier row."""
    above = [int(torch.randint(row, (1,), generator=random)) for row in range(1, rows)]
    return (-1, *above)[:rows]


def decoded_plainly(tree: Tree, row: int) -> Tree:
    """The same token as a root: its ancestors are committed."""
    *above, own = tree.path(row)
    history = tree.entries[above].permute(1, 2, 0, 3)
    return Tree(
        (-1,),
        torch.cat((tree.committed, history), dim=2),
        tree.entries[[own]],
        tree.q[[own]],
    )


def replayed(tree: Tree, row: int, back: int) -> Tree:
    """The same token as the last of a chain that starts ``back`` tokens before the root."""
    path = tree.path(row)
    older = tree.committed[:, :, tree.context - back :].permute(2, 0, 1, 3)
    entries = torch.cat((older, tree.entries[path]))
    queries = torch.cat((tree.q[:1].expand(back, -1, -1), tree.q[path]))
    parents = tuple(range(-1, len(entries) - 1))
    return Tree(parents, tree.committed[:, :, : tree.context - back], entries, queries)


def lay_out(
    trees: Sequence[Tree], shape: Shape, padding: int, random: torch.Generator, device: torch.device
) -> Layout:
    """Blocks in any order; what no row may read is NaN."""
    sizes = [-(-(tree.context + len(tree.parents)) // BLOCK) for tree in trees]
    blocks = torch.randperm(sum(sizes) + 2, generator=random, dtype=torch.int32)
    widest = max(sizes, default=0) + 1
    tables = torch.full((len(trees), widest), int(blocks[-1]), dtype=torch.int32)
    for table, own in zip(tables, blocks[: sum(sizes)].split(sizes), strict=True):
        table[: len(own)] = own
    cpu = torch.device("cpu")
    layer = KVPool.empty(1, shape.kv_heads, len(blocks), shape.head_dim, cpu).layer(0)
    layer.codes.view(torch.uint8).fill_(_NAN_CODE)
    count = sum(len(tree.parents) for tree in trees) + padding
    rows = StepRows.empty(len(trees), count, cpu)
    path = torch.full((count, 65), 2**30, dtype=torch.int32)
    q = torch.full((count, shape.heads, shape.head_dim), torch.nan, dtype=torch.bfloat16)
    start = 0
    for slot, tree in enumerate(trees):
        n = len(tree.parents)
        slots = torch.arange(tree.context + n)
        places = tables[slot][slots // BLOCK] * BLOCK + slots % BLOCK
        vectors = torch.cat((tree.committed, tree.entries.permute(1, 2, 0, 3)), dim=2)
        _write(layer, places, vectors)
        rows.start[slot], rows.count[slot] = start, n
        own = slice(start, start + n)
        rows.slot[own] = slot
        q[own] = tree.q
        for row, parent in enumerate(tree.parents):
            line = tree.path(row)
            rows.parent[start + row] = parent
            rows.depth[start + row] = len(line) - 1
            rows.position[start + row] = tree.context + len(line) - 1
            path[start + row, : len(line)] = torch.tensor(line)
        start += n
    return Layout(
        q.to(device),
        KVLayer(layer.codes.to(device), layer.exponents.to(device)),
        tables.to(device),
        StepRows(*(getattr(rows, field.name).to(device) for field in fields(StepRows))),
        path.to(device),
    )


def _write(layer: KVLayer, places: Tensor, vectors: Tensor) -> None:
    """Quantise ``vectors`` [2, kv_heads, tokens, head_dim] into ``places`` [tokens]."""
    codes, exponents = quantize_vectors_reference(vectors)
    at = places.long()
    layer.codes.view(torch.uint8).flatten(2, 3)[:, :, at] = codes.view(torch.uint8)
    layer.exponents.flatten(2, 3)[:, :, at] = exponents
