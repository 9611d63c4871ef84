"""How a row's context is cut for attention: by its own position and nothing else.

Positions are cut into tiles of TILE. A row at position p takes its last NEAR tiles, ``p // TILE``
and the one before it, by itself: there its ancestors stand. No row is more than TILE below its
root, so the *far* tiles before them hold committed tokens only, and rows of a sequence can share
them. They are cut into spans, which is how much a program looks at at a time, and those into splits
of ``max(1, ceil(spans / most_splits))`` spans.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 64  # positions
NEAR = 2  # tiles
# Tokens of a span, of heads of up to so many numbers: as many as a processor has room for, as codes
# and widened. The interpreter does as sm_90.
_SPANS, _SPAN_WIDTH = {8: 64, 9: 128}, 128

_TILE, _NEAR = tl.constexpr(TILE), tl.constexpr(NEAR)


@triton.jit
def far_tiles_of(position):
    """How many tiles lie before the last ones of a row."""
    return tl.maximum(position // _TILE - (_NEAR - 1), 0)


@triton.jit
def spans_of(far, SPAN: tl.constexpr):
    """Spans of ``far`` far tiles; the last one may not be full."""
    return (far * _TILE + SPAN - 1) // SPAN


@triton.jit
def split_size_of(spans, MOST_SPLITS: tl.constexpr):
    """Spans per split of a row that has so many of them."""
    return tl.maximum((spans + MOST_SPLITS - 1) // MOST_SPLITS, 1)


def span_for(width: int, major: int) -> int:
    """Tokens of a span, for heads of ``width`` numbers and a compute capability ``major``."""
    return _SPANS[min(major, 9)] * _SPAN_WIDTH // max(width, _SPAN_WIDTH)


def most_splits_of(context: int, most_splits: int, span: int) -> int:
    """Splits that rows up to position ``context`` have at most."""
    far = max(context // TILE - (NEAR - 1), 0)
    return min(-(-far * TILE // span), most_splits)


def choose_splits(kv_heads: int) -> int:
    """Splits at most, such that one long sequence fills a GPU: a property of the model.

    Two programs for each of some 130 processors; more make more partial results.
    """
    return min(max(-(-256 // kv_heads), 8), 64)
