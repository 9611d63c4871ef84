"""What the drafter needs of a draft model: memory, and passes over nodes of many sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from foredraft.engine.kv import BlockPool
from foredraft.engine.sampling import SampledRow
from foredraft.wire.messages import ModelInfo

WIDTH = 3  # different guesses at one place


class Extension(NamedTuple):
    """New rows of one sequence: committed tokens first, then nodes.

    blocks: its memory, all in one piece; slot i lies in ``blocks[i // BLOCK]``.
    fed: committed tokens whose entries are in place: slot i holds position i.
    committed: the tokens that follow them.
    nodes: tokens of nodes, parents before children.
    lines: for every node the slots of its ancestors below the root, its own last. Ancestors may
        be there already or rows of this very pass.
    looks: how the token after each of the last rows is drawn; None: it is the best one.
    """

    blocks: Sequence[int]
    fed: int
    committed: Sequence[int]
    nodes: Sequence[int]
    lines: Sequence[Sequence[int]]
    looks: Sequence[SampledRow | None]

    @property
    def rows(self) -> int:
        return len(self.committed) + len(self.nodes)


class Guesses(NamedTuple):
    """For every look the likeliest next tokens, best first, and the probability of each.

    There are `WIDTH` of them, or as many as the model can guess.
    """

    tokens: list[list[int]]
    chances: list[list[float]]


class DraftEngine(Protocol):
    """One draft model for one target. Not thread-safe: one engine thread owns it."""

    info: ModelInfo
    chunk: int  # tokens that one call of `prefill` takes at most

    @property
    def pool(self) -> BlockPool: ...

    def warm_up(self) -> None:
        """Do once what only the first pass would pay for."""

    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the entries of committed tokens at positions start..start+len(tokens)-1."""

    def extend(self, batch: Sequence[Extension], meanwhile: Callable[[], None]) -> Guesses:
        """Write the entries of new rows; guesses in the order of the looks.

        Args:
            meanwhile: is called once, while a device computes if it is not this processor.
        """

    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy entries from slot to slot of one sequence; all reads come before the writes."""

    def relocate(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Copy all entries of ``old`` to the beginning of ``new``; they have no block in common."""


class ModelEngine(DraftEngine, Protocol):
    """One that runs weights of a draft's own."""

    def device_ms(self, batch: Sequence[Extension]) -> float:
        """Milliseconds that the device takes for a pass. For benchmarks."""
