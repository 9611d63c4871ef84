"""Weights in the order in which the product reads them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from foredraft.engine.native.blocks import Blocks
from foredraft.engine.native.large_pages import LargePages
from kernels.cpu.block_product import TILE, pack


@dataclass(frozen=True, slots=True)
class Packed:
    """A linear layer: uint8 ``weights`` at ``address``, and outputs padded to whole tiles."""

    weights: Tensor
    address: int
    bits: int
    outputs: int
    columns: int

    @classmethod
    def of(cls, blocks: Blocks, pages: LargePages) -> Packed:
        """Pack ``blocks`` into ``pages``."""
        rows, columns = blocks.shape
        whole = blocks.by_row(lambda part: functional.pad(part, (0, 0, 0, -rows % TILE)))
        weights = pages.keep(pack(whole.levels, whole.scales, whole.least))
        return cls(weights, weights.data_ptr(), blocks.bits, len(whole.levels), columns)
