"""KV memory in E4M3: the pool of blocks, and the codes and exponents behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foredraft.engine.fp8.upload import upload
from foredraft.engine.kv import BLOCK, BlockPool
from foredraft.engine.model_config import ModelConfig
from kernels.kv_layout import KVPool

_MOST_VALUES = 2**31 - 1  # of a layer's KV head: kernels count them in 32 bits


class CodedKV:
    """Keys and values of all layers as `kernels.kv_layout` holds them. Block 0 stays zero."""

    def __init__(self, config: ModelConfig, mib: int, device: torch.device) -> None:
        blocks = mib * 2**20 // coded_block_bytes(config)
        blocks = min(blocks, _MOST_VALUES // (BLOCK * config.head_dim) - 1)
        self.pool = BlockPool(blocks)
        self.memory = KVPool.empty(
            config.layers, config.kv_heads, blocks + 1, config.head_dim, device
        )

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Copy the entries at physical slots ``sources`` to ``targets``; reads come first."""
        device = self.memory.codes.device
        read, write = torch.from_numpy(sources).to(device), torch.from_numpy(targets).to(device)
        for entries in self._by_slot():
            entries.index_copy_(3, write, entries.index_select(3, read))

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold values that are not finite, before they are freed."""
        if blocks:
            where = torch.empty(len(blocks), dtype=torch.int64, device=self.memory.codes.device)
            upload(where, np.array(blocks, np.int64))  # steps may run, which nobody waits for
            for entries in (self.memory.codes.view(torch.uint8), self.memory.exponents):
                entries.index_fill_(3, where, 0)

    def _by_slot(self) -> tuple[Tensor, Tensor]:
        """Codes as bytes and exponents: [layers, 2, kv_heads, slots, ..]."""
        return self.memory.codes.view(torch.uint8).flatten(3, 4), self.memory.exponents.flatten(3)


def coded_block_bytes(config: ModelConfig) -> int:
    """Bytes of one block over all layers."""
    return 2 * config.layers * config.kv_heads * BLOCK * (config.head_dim + 1)
