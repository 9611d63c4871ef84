"""The draft's keys and values: each sequence lies in one piece, which is read as it lies."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draft_service.engine.transfer import to_device
from foredraft.engine.kv import BLOCK, BlockPool
from foredraft.engine.model_config import ModelConfig


class SlotMemory:
    """One tensor of all layers: [layers, 2, kv_heads, slots, head_dim], keys before values.

    Block 0 is never handed out: rows that fill up a pass of fixed shape write there.

    layers, planes: views of it, made once: each layer; each layer's keys and its values, as
        [1, kv_heads, slots, head_dim].
    """

    def __init__(
        self, config: ModelConfig, total_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pool = BlockPool(total_blocks)
        shape = (config.layers, 2, config.kv_heads, (total_blocks + 1) * BLOCK, config.head_dim)
        self.entries = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = self.entries.unbind()
        self.planes = [layer[:, None].unbind() for layer in self.layers]
        self._waiting: dict[int, list[tuple[int, int]]] = {}  # by first block: physical slots

    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Note a copy; those of all sequences are made at once, before the next pass.

        Memory that is given back meanwhile is written by that copy before its next owner's pass.
        """
        moved = [(first_slot(blocks) + a, first_slot(blocks) + b) for a, b in pairs if a != b]
        if blocks[0] in self._waiting:
            self.settle()
        if moved:
            self._waiting[blocks[0]] = moved

    def settle(self) -> None:
        """Make the copies that were noted; all reads come before the writes."""
        if not self._waiting:
            return
        pairs = [pair for moved in self._waiting.values() for pair in moved]
        sources, targets = to_device(pairs, self.entries.device).T
        self.entries.index_copy_(3, targets, self.entries.index_select(3, sources))
        self._waiting.clear()

    def relocate(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Copy all entries of ``old`` to the beginning of ``new``."""
        self.settle()
        count = len(old) * BLOCK
        there = self.entries.narrow(3, first_slot(new), count)
        there.copy_(self.entries.narrow(3, first_slot(old), count))


def first_slot(blocks: Sequence[int]) -> int:
    """The physical slot at which a sequence begins."""
    return blocks[0] * BLOCK
