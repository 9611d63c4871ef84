"""How a row's context is cut for attention: by its own position and nothing else.

Positions are cut into tiles of TILE. A row at position p takes its last NEAR tiles, ``p // TILE``
and the one before it, by itself: there its ancestors stand. No row is more than TILE below its
root, so the *far* tiles before them hold committed tokens only, and rows of a sequence can share
them. They are cut into splits of ``max(2, ceil(far / most_splits))`` tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 64  # positions
NEAR = 2  # tiles
_LEAST = 2  # tiles of a split

_TILE, _NEAR, _LEAST_TILES = tl.constexpr(TILE), tl.constexpr(NEAR), tl.constexpr(_LEAST)


@triton.jit
def far_tiles_of(position):
    """How many tiles lie before the last ones of a row."""
    return tl.maximum(position // _TILE - (_NEAR - 1), 0)


@triton.jit
def split_size_of(far, MOST_SPLITS: tl.constexpr):
    """Tiles per split of a row with ``far`` far tiles."""
    return tl.maximum((far + MOST_SPLITS - 1) // MOST_SPLITS, _LEAST_TILES)


def most_far_tiles(context: int) -> int:
    """Far tiles of the row at position ``context``."""
    return max(context // TILE - (NEAR - 1), 0)


def most_splits_of(context: int, most_splits: int) -> int:
    """Splits that rows up to position ``context`` have at most."""
    return min(-(-most_far_tiles(context) // _LEAST), most_splits)


def choose_splits(kv_heads: int) -> int:
    """Splits at most, such that one long sequence fills a GPU: a property of the model.

    Two programs for each of some 130 processors; more make more partial results.
    """
    return min(max(-(-256 // kv_heads), 8), 64)
