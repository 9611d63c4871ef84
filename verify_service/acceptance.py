"""Which guesses become tokens: those that equal the target's own choice, and where it ends.

Pure functions: the whole of losslessness is here. The target's choice at a row is final by
definition (coupled sampling); a guess only says whether the row below it is already computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foredraft.params import FinishReason


@dataclass(frozen=True, slots=True)
class Accepted:
    """``rows``: the root's row, then accepted nodes' rows; ``tokens``: their choices, in order."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """What of a commit is delivered, and whether the sequence ends with it."""

    tokens: tuple[int, ...]
    finish: FinishReason | None


def accept(tokens: Sequence[int], parents: Sequence[int], choices: Sequence[int]) -> Accepted:
    """Follow the target's choices down the tree.

    Args:
        tokens: per row, the token fed; row 0 is the root.
        parents: per row, the row of its parent; of row 0 it is ignored.
        choices: per row, the token the target chose after it.

    Returns:
        The path of rows whose tokens were chosen. Its last choice is the target's own token.
    """
    child_rows = {(parents[row], tokens[row]): row for row in range(1, len(tokens))}
    rows = [0]
    while (child := child_rows.get((rows[-1], choices[rows[-1]]))) is not None:
        rows.append(child)
    return Accepted(tuple(rows), tuple(choices[row] for row in rows))


def apply_stops(tokens: Sequence[int], budget: int, stops: Collection[int]) -> Ending:
    """Cut a commit at the first thing that ends it, token by token.

    Args:
        budget: tokens that may still be delivered.
        stops: EOS and stop ids; they end the sequence and are not delivered.
    """
    for index, token in enumerate(tokens):
        if token in stops:
            return Ending(tuple(tokens[:index]), FinishReason.STOP)
        if index + 1 == budget:
            return Ending(tuple(tokens[: index + 1]), FinishReason.LENGTH)
    return Ending(tuple(tokens), None)
