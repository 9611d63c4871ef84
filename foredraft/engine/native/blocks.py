"""Weights as a GGUF file holds them: 32 columns of a row share a scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.engine.model_config import UnsupportedModel

BLOCK = 32  # columns
_LARGEST = 127  # level of 8 bits; -128 is not one, so that each has its opposite
_MOST_SCALE = torch.finfo(torch.float16).max
_PIECE = 4096  # rows that are looked at together, so that a large matrix is never copied whole


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of 4 bits, w = scale * level + least, or of 8, w = scale * level.

    GGUF's Q4_1 and Q4_0, and its Q8_0. Scales and least values are finite.

    levels: [rows, columns], columns a multiple of 32; uint8 0..15 for 4 bits, int8 -127..127 for 8.
    scales: float16 [rows, columns / 32].
    least: float16 [rows, columns / 32]; None for 8 bits.
    """

    levels: Tensor
    scales: Tensor
    least: Tensor | None

    @property
    def bits(self) -> int:
        return 8 if self.least is None else 4

    @property
    def sound(self) -> bool:
        """Whether all numbers are what the kernels count on, whatever their types allow."""
        if self.least is None:
            return bool(self.scales.isfinite().all()) and int(self.levels.min()) >= -_LARGEST
        finite = self.scales.isfinite().all() and self.least.isfinite().all()
        return bool(finite) and int(self.levels.max()) < 16

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.levels.shape
        return rows, columns

    def floats(self) -> Tensor:
        """The weights, float32 [rows, columns]: the very numbers that gguf makes of the blocks.

        A product of 11 and 7 bits is exact in float32, so there is one rounding, that of the sum.
        """
        values = self.levels.unflatten(1, (-1, BLOCK)).float().mul_(self.scales.float()[..., None])
        if self.least is not None:
            values += self.least.float()[..., None]
        floats: Tensor = values.flatten(1)
        return floats

    def equals(self, weight: Tensor) -> bool:
        """Whether these are the numbers of ``weight`` [rows, columns], of any float type."""
        if tuple(weight.shape) != self.shape:
            return False
        starts = range(0, len(weight), _PIECE)
        return all(self._equal_at(slice(start, start + _PIECE), weight) for start in starts)

    def by_row(self, change: Callable[[Tensor], Tensor]) -> Blocks:
        """Rows chosen or reordered by ``change``, which sees a tensor of one row per row."""
        least = None if self.least is None else change(self.least)
        return Blocks(change(self.levels), change(self.scales), least)

    @classmethod
    def stacked(cls, parts: Sequence[Blocks]) -> Blocks:
        """The rows of ``parts``, all of as many columns.

        Raises:
            UnsupportedModel: some have 4 bits and some have 8.
        """
        least = [part.least for part in parts if part.least is not None]
        if len(least) not in (0, len(parts)):
            raise UnsupportedModel("blocks of 4 and of 8 bits cannot be one matrix")
        return cls(
            torch.cat([part.levels for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat(least) if least else None,
        )

    @classmethod
    def nearest(cls, weight: Tensor) -> Blocks:
        """Blocks of 8 bits: no weight is off by more than half its scale, which is max |w| / 127
        rounded up to float16.

        ``weight``: [rows, columns] of any float type; columns a multiple of 32.

        Raises:
            UnsupportedModel: a weight is not finite, or too large for such a scale.
        """
        parts = [cls._nearest(piece.float()) for piece in weight.split(_PIECE)]
        return cls.stacked(parts)

    def _equal_at(self, rows: slice, weight: Tensor) -> bool:
        piece = self.by_row(lambda tensor: tensor[rows])
        return torch.equal(piece.floats(), weight[rows].float())

    @classmethod
    def _nearest(cls, weight: Tensor) -> Blocks:
        blocks = weight.unflatten(1, (-1, BLOCK))
        wanted = blocks.abs().amax(dim=2) / _LARGEST
        scales = _rounded_up(wanted)
        if not scales.isfinite().all():
            most = f"{_LARGEST * _MOST_SCALE:g}"
            raise UnsupportedModel(
                f"a weight is not finite, or beyond the {most} of dtype int8; use --dtype float32"
            )
        # In a block of zeros all are 0.
        divisors = torch.where(scales > 0, scales.float(), torch.inf)
        levels = (blocks / divisors[..., None]).round_().to(torch.int8)
        return cls(levels.flatten(1), scales, None)


def _rounded_up(values: Tensor) -> Tensor:
    """The smallest float16 that is no smaller, of numbers from 0; NaN stays."""
    nearest = values.half()
    # Of numbers from 0 the next larger one is the next bit pattern; infinity has none.
    above = (nearest.view(torch.int16) + 1).view(torch.float16)
    return torch.where(nearest.float() < values, above, nearest)
