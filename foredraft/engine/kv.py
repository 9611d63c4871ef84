"""Paged KV memory: a pool of blocks and the tensors behind them.

A sequence owns a table of blocks; its logical slot i lives in block ``table[i // 16]``. Slots
below the committed length hold position i; the slots behind them hold nodes of a tree, in any
order, until a commit moves the accepted ones into place and the rest is overwritten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig

BLOCK = 16  # tokens per block


class BlockPool:
    """Free blocks. Block 0 is never handed out: it stays zero and pads gathers.

    Blocks are handed out in one piece where that is possible: what lies in one piece is read
    without a copy.
    """

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._free = list(range(1, total_blocks + 1))  # ascending

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @staticmethod
    def blocks_for(tokens: int) -> int:
        """Blocks that hold ``tokens`` entries."""
        return -(-tokens // BLOCK)

    @property
    def longest_run(self) -> int:
        """Blocks of the longest free piece."""
        edges = np.flatnonzero(np.diff(self._free) != 1) + 1
        return int(np.diff([0, *edges, len(self._free)]).max())

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take ``count`` blocks, if possible a run that starts right behind block ``after``.

        Raises MemoryError if fewer are free.
        """
        if not self.can_allocate(count):
            raise MemoryError(f"{count} blocks wanted, {len(self._free)} free")
        start = self._find_run(count, after)
        taken = self._free[start : start + count]
        del self._free[start : start + count]
        return taken

    def allocate_run(self, count: int, after: int | None = None) -> list[int] | None:
        """Take ``count`` blocks in one piece, behind block ``after`` if one is given.

        None, and nothing is taken, if there is no such piece.
        """
        if not self.can_allocate(count):
            return None
        start = self._find_run(count, after)
        taken = self._free[start : start + count]
        first = taken[0] if after is None else after + 1
        if taken != list(range(first, first + count)):
            return None
        del self._free[start : start + count]
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        self._free = sorted([*self._free, *blocks])

    def _find_run(self, count: int, after: int | None) -> int:
        """Where in the free list to take ``count`` blocks."""
        if after is not None:
            start = bisect_left(self._free, after + 1)
            if self._free[start : start + count] == list(range(after + 1, after + 1 + count)):
                return start
        for start in range(len(self._free) - count + 1):
            if count and self._free[start + count - 1] - self._free[start] == count - 1:
                return start
        return 0


class PagedKV:
    """Keys and values of all layers.

    A layer is one tensor [2, kv_heads, blocks, BLOCK, head_dim] (keys, then values), seen as
    rows of one token ([.., head_dim]) for writes and scattered reads, as rows of one block
    ([.., BLOCK * head_dim]) for reads of whole tiles, and as [2, kv_heads, slots, head_dim] for
    reads of what lies in one piece.
    """

    def __init__(
        self, config: ModelConfig, total_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pool = BlockPool(total_blocks)
        self.head_dim = config.head_dim
        self.planes = 2 * config.kv_heads
        self.blocks = total_blocks + 1
        shape = (self.planes * self.blocks, BLOCK * config.head_dim)
        self.block_rows = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)
        ]
        self.token_rows = [layer.view(-1, config.head_dim) for layer in self.block_rows]
        self.slot_rows = [
            layer.view(2, config.kv_heads, -1, config.head_dim) for layer in self.block_rows
        ]
        self._block_planes = np.arange(self.planes, dtype=np.int64) * self.blocks
        self._token_planes = self._block_planes * BLOCK

    def token_index(self, slots: np.ndarray) -> np.ndarray:
        """Rows of ``token_rows`` for physical slots [...]: [planes, ...]."""
        rows: np.ndarray = np.add.outer(self._token_planes, slots)
        return rows

    def value_index(self, slots: np.ndarray) -> np.ndarray:
        """The part of `token_index` that is values: [kv_heads, ...]."""
        return self.token_index(slots)[self.planes // 2 :]

    def block_index(self, tables: np.ndarray) -> np.ndarray:
        """Rows of ``block_rows`` for blocks [...]: [planes, ...]."""
        rows: np.ndarray = np.add.outer(self._block_planes, tables)
        return rows

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Copy the entries at physical slots ``sources`` to ``targets``; reads come first."""
        if not len(sources):
            return
        device = self.token_rows[0].device
        read = torch.from_numpy(self.token_index(sources).reshape(-1)).to(device)
        write = torch.from_numpy(self.token_index(targets).reshape(-1)).to(device)
        for rows in self.token_rows:
            rows.index_copy_(0, write, rows.index_select(0, read))

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold values that are not finite, before they are freed."""
        if not blocks:
            return
        device = self.block_rows[0].device
        index = self.block_index(np.asarray(blocks, dtype=np.int64)).reshape(-1)
        where = torch.from_numpy(index).to(device)
        for rows in self.block_rows:
            rows.index_fill_(0, where, 0.0)


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return 2 * config.layers * config.kv_heads * config.head_dim * BLOCK * dtype.itemsize


def physical_slots(blocks: Sequence[int], slots: np.ndarray) -> np.ndarray:
    """Physical slots of logical ``slots`` under the block table ``blocks``."""
    table = np.asarray(blocks, dtype=np.int64)
    located: np.ndarray = table[slots // BLOCK] * BLOCK + slots % BLOCK
    return located


def moved_slots(
    blocks: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Physical slots to copy from and to, of logical ones; those that stay are left out."""
    moved = np.array([pair for pair in pairs if pair[0] != pair[1]], dtype=np.int64).reshape(-1, 2)
    return physical_slots(blocks, moved[:, 0]), physical_slots(blocks, moved[:, 1])


def to_device(index: np.ndarray, device: torch.device) -> Tensor:
    """A flat int64 index tensor on ``device``."""
    return torch.from_numpy(np.ascontiguousarray(index).reshape(-1)).to(device)
