"""What stands around attention: rows of a step, RoPE and the write of KV, moves after a commit.

All are small beside a layer; what counts is how long a launch takes. On the GPU every byte must be
what the reference on the CPU makes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from kernels.build_inputs import build_inputs, build_inputs_reference
from kernels.kv_compact import kv_compact, kv_compact_reference
from kernels.kv_layout import BLOCK, KVLayer, KVPool
from kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference
from kernels.tree_layout import Commits, Picked, Sequences, StepRows, Trees


@dataclass(frozen=True, slots=True)
class Heads:
    """Of a model."""

    queries: int
    kv: int
    head_dim: int


_HEADS, _LAYERS = Heads(32, 8, 128), 32
_ROPE_ROWS = (1, 64, 4096)
_SLOTS = (1, 8)
_LENGTH, _NODES, _ACCEPTED = 1000, 64, 5
_LONGEST = 33


def cases() -> list[Case]:
    heads = _HEADS
    per_row = 4 * (heads.queries + heads.kv) * heads.head_dim + 2 * heads.kv * (heads.head_dim + 1)
    moved = 4 * (heads.head_dim + 1) * heads.kv * _LAYERS * (_ACCEPTED - 1)
    return [
        *(
            Case(
                "rope_kv_write",
                _count(rows, "row"),
                rows * per_row,
                partial(prepare_rope, heads, rows),
            )
            for rows in _ROPE_ROWS
        ),
        *(
            Case(
                "kv_compact",
                f"{_count(slots, 'commit')} of {_ACCEPTED} rows, {_LAYERS} layers",
                slots * moved,
                partial(prepare_compact, heads, slots, _LAYERS),
            )
            for slots in _SLOTS
        ),
        *(
            Case(
                "build_inputs",
                f"{_count(slots, 'tree')} of {_NODES} nodes",
                slots * _NODES * 48,
                partial(prepare_inputs, slots),
            )
            for slots in _SLOTS
        ),
    ]


def prepare_rope(heads: Heads, rows: int, device: torch.device) -> Prepared:
    blocks = -(-rows // BLOCK)
    layer = KVPool.empty(1, heads.kv, blocks, heads.head_dim, device).layer(0)
    columns = (heads.queries + 2 * heads.kv) * heads.head_dim
    copies = copies_for(2 * rows * columns)
    qkv = torch.randn(copies, rows, columns, dtype=torch.bfloat16, device=device)
    angle = torch.rand(rows, heads.head_dim // 2, device=device) * 6
    turns = torch.stack((angle.cos(), angle.sin()), dim=-1)
    row = torch.arange(rows, dtype=torch.int32, device=device)
    q = torch.empty(rows, heads.queries, heads.head_dim, dtype=torch.bfloat16, device=device)

    def check() -> Findings:
        rope_kv_write(qkv[0], turns, row, row, layer, q)
        expected = KVPool.empty(1, heads.kv, blocks, heads.head_dim, torch.device("cpu")).layer(0)
        expected_q = torch.empty(q.shape, dtype=torch.bfloat16)
        at = row.cpu()
        rope_kv_write_reference(qkv[0].cpu(), turns.cpu(), at, at, expected, expected_q)
        same = _same_bytes(layer, expected) and torch.equal(q.cpu(), expected_q)
        return {"every byte is the reference's": same}

    launch = {OURS: lambda copy: rope_kv_write(qkv[copy], turns, row, row, layer, q)}
    return Prepared(launch, copies, check)


def prepare_compact(heads: Heads, slots: int, layers: int, device: torch.device) -> Prepared:
    blocks = -(-(_LENGTH + _NODES) // BLOCK)
    pool = KVPool.empty(layers, heads.kv, slots * blocks, heads.head_dim, device)
    codes = pool.codes.view(torch.uint8)
    codes.copy_(torch.arange(codes.numel(), device=device).view(codes.shape) % 251)
    commits = Commits.empty(slots, _LONGEST, device)
    commits.base.fill_(_LENGTH)
    commits.path.fill_(_ACCEPTED)
    commits.rows[:, :_ACCEPTED] = 3 * torch.arange(_ACCEPTED, device=device)
    tables = _tables(slots, blocks, device)

    def check() -> Findings:
        cpu = torch.device("cpu")
        expected = KVPool(pool.codes.to(cpu, copy=True), pool.exponents.to(cpu, copy=True))
        on_host = (getattr(commits, field.name).cpu() for field in fields(Commits))
        kv_compact_reference(expected, tables.cpu(), Commits(*on_host))
        kv_compact(pool, tables, commits)
        return {"every byte is the reference's": _same_bytes(pool, expected)}

    return Prepared({OURS: lambda copy: kv_compact(pool, tables, commits)}, 2, check)


def prepare_inputs(slots: int, device: torch.device) -> Prepared:
    trees, picked = Trees.empty(slots, _NODES, device), Picked.empty(slots, _NODES, device)
    sequences = Sequences.empty(slots, device)
    node = torch.arange(_NODES, device=device)
    trees.parent.copy_((node // 2 - 1).expand(slots, -1))
    trees.depth.copy_((node + 2).float().log2().int().expand(slots, -1))
    picked.row.copy_((node + 1).expand(slots, -1))
    picked.count.fill_(_NODES)
    sequences.active.fill_(1)
    sequences.length.fill_(_LENGTH)
    inputs = trees, sequences, picked, _tables(slots, -(-(_LENGTH + _NODES) // BLOCK), device)
    count = slots * (_NODES + 1) + 7

    def outputs() -> tuple[StepRows, Tensor, Tensor]:
        place, path = torch.zeros(2, count, _LONGEST, dtype=torch.int32, device=device)
        return StepRows.empty(slots, count, device), place[:, 0].contiguous(), path

    ours, expected = outputs(), outputs()

    def check() -> Findings:
        build_inputs(*inputs, *ours)
        build_inputs_reference(*inputs, *expected)
        same = all(
            torch.equal(getattr(ours[0], field.name), getattr(expected[0], field.name))
            for field in fields(StepRows)
        )
        same = same and all(map(torch.equal, ours[1:], expected[1:]))
        return {"every number is the reference's": same}

    return Prepared({OURS: lambda copy: build_inputs(*inputs, *ours)}, 2, check)


def _tables(slots: int, blocks: int, device: torch.device) -> Tensor:
    return torch.arange(slots * blocks, dtype=torch.int32, device=device).view(slots, blocks)


def _same_bytes(found: KVLayer | KVPool, expected: KVLayer | KVPool) -> bool:
    codes = found.codes.cpu().view(torch.uint8), expected.codes.view(torch.uint8)
    return torch.equal(*codes) and torch.equal(found.exponents.cpu(), expected.exponents)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
