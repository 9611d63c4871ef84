"""One cell of the measurement: how many sequences, guesses and committed tokens a step has.

Every step is the same: each sequence is put back to where it was, gets its guesses again, in a
binary tree, and all of them are verified. That is what a step after a miss does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import torch
from torch import Tensor

from foredraft.engine.fp8.device_step import DeviceStep, StepBucket, StepLimits
from foredraft.engine.fp8.kv import coded_block_bytes
from foredraft.engine.fp8.model import Model
from foredraft.engine.fp8.operations import Operations
from foredraft.engine.fp8.weights import Weights
from foredraft.engine.kv import BLOCK
from foredraft.tree.node_id import child_id, signed, start_id
from foredraft.wire.messages import Source
from kernels.kv_layout import KVPool

_TREE = 64  # nodes of one sequence at most
_DEPTH = 32
_CONFIDENCE = 0.9
_LARGEST_CODE = 0x50  # 8.0: what attention reads is finite, and its size does not matter


@dataclass(frozen=True, slots=True)
class Cell:
    """``nodes`` of a step, over all its sequences; ``context``: committed tokens of each."""

    sequences: int
    nodes: int
    context: int

    @property
    def shares(self) -> list[int]:
        """Guesses of each sequence, as even as can be."""
        least, more = divmod(self.nodes, self.sequences)
        return [least + (slot < more) for slot in range(self.sequences)]

    def moved_bytes(self, weights: Weights) -> int:
        """What a step has to read at least: all weights but the embedding, and the KV once."""
        read = weights.head.numel() * weights.head.element_size()
        for layer in weights.layers:
            for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
                read += matrix.codes.nbytes + matrix.scales.nbytes
        return read + self.sequences * self.context * coded_block_bytes(weights.config) // BLOCK


def cells_of(sequences: Iterable[int], nodes: Iterable[int], contexts: Iterable[int]) -> list[Cell]:
    """All combinations in which no tree is too large."""
    made = (Cell(*numbers) for numbers in product(sequences, nodes, contexts))
    return [cell for cell in made if max(cell.shares) <= _TREE]


class StepBench:
    """A cell's memory, and its steps."""

    def __init__(self, weights: Weights, cell: Cell, operations: Operations) -> None:
        config, device = weights.config, weights.embedding.device
        self.bucket = StepBucket(cell.nodes)
        self._told = _content(cell)
        per_slot = -(-(cell.context + 1 + max(cell.shares)) // BLOCK)
        blocks = 1 + cell.sequences * per_slot
        memory = KVPool.empty(config.layers, config.kv_heads, blocks, config.head_dim, device)
        memory.codes.view(torch.uint8).random_(0, _LARGEST_CODE)
        limits = StepLimits(
            slots=cell.sequences,
            context=cell.context + 1 + _TREE,
            nodes=_TREE,
            depth=_DEPTH,
            guesses=max(cell.nodes, 1),
            biases=1,
            ends=1,
        )
        self.step = DeviceStep(Model(weights, memory, operations), limits, len(weights.head))
        own = torch.arange(per_slot, dtype=torch.int32, device=device)
        for slot in range(cell.sequences):
            self.step.tables[slot, :per_slot].copy_(1 + slot * per_slot + own)

    def launch(self) -> int:
        """Start a step; its number."""
        told = self.step.told()
        for name, content in self._told.items():
            told[name].copy_(content)
        return self.step.launch(self.bucket)


def _content(cell: Cell) -> dict[str, Tensor]:
    """What every step is told."""
    roots = [start_id(slot, 1) for slot in range(cell.sequences)]
    trees = [_binary_tree(root, count) for root, count in zip(roots, cell.shares, strict=True)]
    nodes = [node for tree in trees for node in tree] or [(0, 0)]
    every, length = torch.ones(cell.sequences, dtype=torch.int32), cell.context + 1
    return {
        "changed": every,
        "active": every,
        "speculates": every,
        "length": every * length,
        "limit": every * (length + _TREE),
        "node_limit": every * _TREE,
        "root_token": every,
        "root_id": torch.tensor([signed(root) for root in roots]),
        "allowed": torch.tensor([cell.nodes], dtype=torch.int32),
        "starts": torch.tensor([0, *accumulate(cell.shares)], dtype=torch.int32),
        "parent_id": torch.tensor([signed(parent) for parent, _ in nodes]),
        "token": torch.tensor([token for _, token in nodes], dtype=torch.int32),
        "confidence": torch.full((len(nodes),), _CONFIDENCE),
        "source": torch.full((len(nodes),), int(Source.MODEL), dtype=torch.int32),
    }


def _binary_tree(root: int, count: int) -> Sequence[tuple[int, int]]:
    """(parent's id, token) of ``count`` nodes, row by row."""
    ids, nodes = [root], []
    for number in range(count):
        parent = ids[number // 2]
        nodes.append((parent, 2 + number))
        ids.append(child_id(parent, 2 + number))
    return nodes
