"""Steps of a model of one layer, through all kernels around attention."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from support.ordered_products import ordered_products
from torch import Tensor

from kernels.build_inputs import build_inputs
from kernels.kv_compact import kv_compact
from kernels.kv_layout import KVPool
from kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference
from kernels.tree_attention import tree_attention
from kernels.tree_attention_combine import Partials
from kernels.tree_layout import Commits, Picked, Sequences, StepRows, Trees

_HEADS, _KV_HEADS, _HEAD_DIM = 2, 1, 16
_VOCABULARY, _POSITIONS, _LONGEST = 50, 250, 6


@dataclass(frozen=True, slots=True)
class _Guess:
    token: int
    parent: int  # a node, -1 for the root


class _Model:
    """One sequence in slot 1 of two; the other takes no part."""

    def __init__(self, device: torch.device) -> None:
        random = torch.Generator().manual_seed(1)
        columns = (_HEADS + 2 * _KV_HEADS) * _HEAD_DIM
        qkv = torch.randn(_VOCABULARY, columns, generator=random)
        angle = torch.arange(_POSITIONS)[:, None] * torch.rand(_HEAD_DIM // 2, generator=random)
        self._qkv = qkv.to(device, torch.bfloat16)
        self._turns = torch.stack((angle.cos(), angle.sin()), dim=-1).to(device)
        self._device = device
        self._pool = KVPool.empty(1, _KV_HEADS, 48, _HEAD_DIM, device)
        blocks = torch.randperm(48, generator=random).view(2, 24)
        self._tables = blocks.to(device, torch.int32)
        self._sequences = Sequences.empty(2, device)
        self._sequences.active[1] = 1

    def prefill(self, tokens: Tensor) -> None:
        """Write the keys and values of positions 0, 1, .."""
        slots = torch.arange(len(tokens), device=self._device)
        places = self._tables[1][slots // 16] * 16 + slots % 16
        q = torch.zeros(len(tokens), _HEADS, _HEAD_DIM, dtype=torch.bfloat16, device=self._device)
        inputs = self._qkv[tokens.to(self._device)], self._turns, slots.int(), places.int()
        rope_kv_write_reference(*inputs, self._pool.layer(0), q)
        self._sequences.length[1] = len(tokens) + 1

    def step(self, root: int, guesses: list[_Guess]) -> Tensor:
        """Attention's results for the root and every guess: [rows, heads, head_dim]."""
        trees, picked = Trees.empty(2, 8, self._device), Picked.empty(2, 8, self._device)
        self._sequences.root_token[1] = root
        picked.count[1] = len(guesses)
        for node, guess in enumerate(guesses):
            trees.token[1, node], trees.parent[1, node] = guess.token, guess.parent
            above = int(trees.depth[1, guess.parent]) if guess.parent >= 0 else 0
            trees.depth[1, node], picked.row[1, node] = above + 1, node + 1
        count = len(guesses) + 2  # the last one is padding
        rows = StepRows.empty(2, count, self._device)
        place, path = torch.zeros(2, count, _LONGEST, dtype=torch.int32, device=self._device)
        place = place[:, 0].contiguous()
        build_inputs(trees, self._sequences, picked, self._tables, rows, place, path)
        q = self._write(rows.token, rows.position, place)
        partials = Partials.empty(2, count, _HEADS, _HEAD_DIM, self._device)
        out = torch.zeros(q.shape, device=self._device)
        layer = self._pool.layer(0)
        inputs = q, layer, self._tables, rows, path, partials, out
        tree_attention(*inputs, most_rows=count - 1, most_context=_POSITIONS)
        return out[:-1]

    def commit(self, accepted: list[int]) -> None:
        """Make the root and the nodes of a path final."""
        commits = Commits.empty(2, _LONGEST, self._device)
        commits.base.copy_(self._sequences.length)
        path = [0, *(node + 1 for node in accepted)]
        commits.path[1] = len(path)
        commits.rows[1, : len(path)] = torch.tensor(path, dtype=torch.int32)
        kv_compact(self._pool, self._tables, commits)
        self._sequences.length[1] += len(path)

    def _write(self, tokens: Tensor, positions: Tensor, places: Tensor) -> Tensor:
        q = torch.zeros(len(tokens), _HEADS, _HEAD_DIM, dtype=torch.bfloat16, device=self._device)
        qkv = self._qkv[tokens.long()]
        rope_kv_write(qkv, self._turns, positions, places, self._pool.layer(0), q)
        return q


def test_guessed_and_plain_steps_have_the_same_bits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """Guesses of a tree that reaches into the next tile are accepted, and decoding goes on."""
    ordered_products(monkeypatch)
    prompt = torch.randint(_VOCABULARY, (190,), generator=torch.Generator().manual_seed(2))
    guessing, plain = _Model(device), _Model(device)
    guessing.prefill(prompt)
    plain.prefill(prompt)
    tree = [_Guess(7, -1), _Guess(3, -1), _Guess(3, 0), _Guess(9, 1)]
    out = guessing.step(4, tree)
    guessing.commit([1, 3])
    further = guessing.step(6, [])
    steps = []
    for token in (4, 3, 9, 6):
        steps.append(plain.step(token, [])[0])
        plain.commit([])
    assert torch.equal(out[[0, 2, 4]], torch.stack(steps[:3]))
    assert torch.equal(further, torch.stack(steps[3:]))
    assert not torch.equal(out[1], out[2])
