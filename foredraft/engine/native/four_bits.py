"""Blocks of 4 bits that come near any weights."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.native.blocks import BLOCK, Blocks

_HIGHEST = 15
# Levels that a block's numbers may leave unused; less than none: the few at the ends are clipped,
# and all others have finer steps.
_SLACK = (-2.0, -1.0, 0.0, 1.0)


def four_bits(weight: Tensor) -> Blocks | None:
    """Of each block the scale and least value that fit best, of a few: by least squares.

    Levels are chosen for some range of the block's numbers, then scale and least value are the
    line through levels and numbers that fits best, and each number gets its nearest level of it.

    Args:
        weight: [rows, columns] of any float type; columns a multiple of 32.

    Returns:
        None if float16 does not hold a scale or least value.
    """
    made = _fitted(weight.float())
    return made if made.sound else None


def _fitted(weight: Tensor) -> Blocks:
    numbers = weight.unflatten(1, (-1, BLOCK))
    means = numbers.mean(dim=2, keepdim=True)
    away = numbers - means
    low, high = away.amin(dim=2, keepdim=True), away.amax(dim=2, keepdim=True)
    lines = [_line(away, (low + high) / 2, (high - low) / (_HIGHEST + s)) for s in _SLACK]
    slopes, middles, fits = (torch.stack(part) for part in zip(*lines, strict=True))
    best = fits.argmax(dim=0, keepdim=True)
    scales = slopes.gather(0, best)[0].half()
    least = (means[..., 0] - scales.float() * middles.gather(0, best)[0]).half()
    divisors = torch.where(scales > 0, scales.float(), torch.inf)[..., None]
    levels = ((numbers - least.float()[..., None]) / divisors).round_().clamp_(0, _HIGHEST)
    return Blocks(levels.to(torch.uint8).flatten(1), scales, least)


def _line(away: Tensor, middle: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The line that fits numbers best to levels which lie ``step`` apart around ``middle``.

    ``away``: numbers less their block's mean.

    Returns:
        Its slope, the mean level, and by how much the sum of squares is less than that of ``away``
        (by least squares), each [rows, blocks].
    """
    inverse = torch.where(step > 0, 1 / step, 0.0)
    levels = torch.addcmul(_HIGHEST / 2 - middle * inverse, away, inverse)
    levels = levels.round_().clamp_(0, _HIGHEST)
    means = levels.mean(dim=2)
    spread = levels.square().sum(dim=2) - BLOCK * means.square()
    product = (levels * away).sum(dim=2)
    slope = product / torch.where(spread > 0, spread, torch.inf)
    return slope, means, slope * product
