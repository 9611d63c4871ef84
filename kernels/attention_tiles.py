"""How a row's context is cut for attention: by its own position and nothing else.

Positions are cut into tiles of TILE. A row at position p takes its last NEAR tiles, ``p // TILE``
and the one before it, by itself: there its ancestors stand. No row is more than TILE below its
root, so the *far* tiles before them hold committed tokens only, and rows of a sequence can share
them. They are cut into spans, which is how much a program looks at at a time, and those into splits
of ``max(LEAST / span, ceil(spans / most_splits))`` spans.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 64  # positions
NEAR = 2  # tiles
LEAST = 128  # tokens of a split: what it takes to write its part and to put it together
# Tokens of a span, of heads of up to so many numbers: as many as there are registers for, of which
# each span has keys and values that are on their way. So a row sees all of a far span or nothing.
_SPAN, _SPAN_WIDTH = TILE, 128
_AT_ONCE = 256  # programs that run at once: two for each of some 130 processors
_WORTH = 256  # tokens

_TILE, _NEAR, _LEAST = tl.constexpr(TILE), tl.constexpr(NEAR), tl.constexpr(LEAST)


@triton.jit
def far_tiles_of(position):
    """How many tiles lie before the last ones of a row."""
    return tl.maximum(position // _TILE - (_NEAR - 1), 0)


@triton.jit
def spans_of(far, SPAN: tl.constexpr):
    """Spans of ``far`` far tiles."""
    return far * (_TILE // SPAN)


@triton.jit
def split_size_of(spans, MOST_SPLITS: tl.constexpr, SPAN: tl.constexpr):
    """Spans per split of a row that has so many of them."""
    return tl.maximum((spans + MOST_SPLITS - 1) // MOST_SPLITS, _LEAST // SPAN)


def span_for(width: int) -> int:
    """Tokens of a span, for heads of ``width`` numbers."""
    return _SPAN * _SPAN_WIDTH // max(width, _SPAN_WIDTH)


def most_splits_of(context: int, most_splits: int) -> int:
    """Splits that rows up to position ``context`` have at most."""
    return min(-(-_far_tokens(context) // LEAST), most_splits)


def pieces_of(context: int, most_splits: int, slots: int, shares: int, near: int) -> int:
    """Programs of a share for the far tiles of all slots. No bit hangs on it.

    At least one for each slot, and as many as there are splits to take and as fill the device, or
    half as many again as slots, for those with long contexts. Where not all programs run at once,
    none of them is to begin for less than `_WORTH` tokens.

    Args:
        context: no row stands at a higher position.
        near: programs that rows have for themselves.
    """
    splits = most_splits_of(context, most_splits)
    pieces = min(splits * slots, max(splits, slots + slots // 2, _AT_ONCE // shares))
    if shares * pieces + near > _AT_ONCE:
        pieces = min(pieces, max(-(-_far_tokens(context) * slots // _WORTH), slots))
    return pieces


def _far_tokens(context: int) -> int:
    return max(context // TILE - (NEAR - 1), 0) * TILE


def choose_splits(kv_heads: int) -> int:
    """Splits at most, such that one long sequence fills a GPU: a property of the model.

    More make more partial results.
    """
    return min(max(-(-_AT_ONCE // kv_heads), 8), 64)
