"""Passes of fixed shapes over memory that stays where it is: a GPU replays them as graphs.

What a pass is given goes over in one copy, and its guesses come back in one; both are part of it,
so that a pass is one launch. A shape is captured when it is first used; where there are no graphs
its operations are made one by one, the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.engine.draft_engine import Guesses
from draft_service.engine.guesser import Guesser
from draft_service.engine.pass_input import MOST_ROWS, PassInput, PassNumbers
from draft_service.engine.rows import Rows
from draft_service.engine.transfer import to_device
from foredraft.engine.capture import captured
from foredraft.engine.sampling import only_noise

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, MOST_ROWS)


@dataclass(frozen=True, slots=True)
class Shape:
    """``reach``: slots that a row may see. ``noisy``: some rows' tokens are drawn with noise.

    Both stay as they are where operations do not hang on them.
    """

    rows: int
    reach: int = 0
    noisy: bool = False


def rows_for(rows: Rows) -> int | None:
    """The fewest rows of a shape that holds these; None if there is none."""
    return None if len(rows) > ROWS[-1] else ROWS[bisect_left(ROWS, len(rows))]


class FixedPass(Protocol):
    """The operations of a pass: which they are hangs on its shape alone."""

    @property
    def warm(self) -> Sequence[Shape]:
        """Those that are used the most."""
        ...

    def shape_of(self, rows: Rows) -> Shape | None:
        """The smallest shape that holds these rows; None if there is none."""
        ...

    def compute(self, given: PassInput, shape: Shape) -> tuple[Tensor, Tensor]:
        """Logits [rows, columns], and guesses as `Guesser.best` says."""
        ...


class StaticPass:
    """One shape: what it is given comes from ``numbers``, its guesses go to ``came``, on the host.

    logits: those of the newest pass, on the device.
    """

    def __init__(
        self, shape: Shape, numbers: PassNumbers, given: PassInput, came: Tensor, fixed: FixedPass
    ) -> None:
        self._numbers = numbers
        self._given = given
        self._came = came
        self._shape = shape
        self._fixed = fixed
        self._graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)

    def capture(self, pool: Any) -> None:
        """Make a graph of the pass; its memory comes from ``pool``, which graphs share."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._compute()  # libraries set themselves up here, which a graph must not hold
        torch.cuda.current_stream().wait_stream(aside)
        with captured(pool) as graph:
            self._compute()
        self._graph = graph

    def launch(self) -> None:
        """Begin to compute.

        Logits and guesses must be read before the next launch: graphs share their memory.
        """
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def _compute(self) -> None:
        self._numbers.send(self._given.table)
        self.logits, best = self._fixed.compute(self._given, self._shape)
        self._came.copy_(best, non_blocking=True)


class StaticPasses:
    """All shapes, and the memory that they share."""

    def __init__(self, fixed: FixedPass, guesser: Guesser, device: torch.device) -> None:
        self._fixed = fixed
        self._guesser = guesser
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._numbers = PassNumbers(device)
        self._given = PassInput.empty(MOST_ROWS, device)
        self._came = torch.zeros(MOST_ROWS, 2, guesser.width, pin_memory=self._on_gpu)
        self._found: NDArray[np.float32] = self._came.numpy()
        self._pool: Any = torch.cuda.graph_pool_handle() if self._on_gpu else None
        self._passes: dict[Shape, StaticPass] = {}

    def shape_of(self, rows: Rows) -> Shape | None:
        return self._fixed.shape_of(rows)

    def warm_up(self) -> None:
        """Make what is used the most. Later a capture keeps all others waiting."""
        # What an earlier pass was given may reach beyond a shorter shape, which computes with it.
        self._numbers.clear()
        for shape in self._fixed.warm:
            self._pass(shape).launch()

    def run(self, rows: Rows, shape: Shape, meanwhile: Callable[[], None]) -> Guesses:
        """One pass; the memory must be settled. ``meanwhile`` is called while a GPU computes."""
        made = self.filled(rows, shape)
        made.launch()
        meanwhile()
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()
        found = self._found[rows.looked]
        guesses = Guesses(found[:, 0].astype(np.int64).tolist(), found[:, 1].tolist())
        self._mend(guesses, made, rows)
        return guesses

    def filled(self, rows: Rows, shape: Shape) -> StaticPass:
        """The pass of that shape, whose input is ready to be sent."""
        self._numbers.fill(rows, shape.rows)
        return self._pass(shape)

    def _pass(self, shape: Shape) -> StaticPass:
        made = self._passes.get(shape)
        if made is None:
            count = shape.rows
            given, came = self._given[:count], self._came[:count]
            made = StaticPass(shape, self._numbers, given, came, self._fixed)
            if self._pool is not None:
                made.capture(self._pool)
            self._passes[shape] = made
        return made

    def _mend(self, guesses: Guesses, made: StaticPass, rows: Rows) -> None:
        """Rows with penalties, bias or filters are scored again, one by one."""
        places = [
            place
            for place, look in enumerate(rows.looks)
            if look is not None and not only_noise(look)
        ]
        if not places:
            return
        looked = to_device([rows.looked[place] for place in places], self._device)
        again = made.logits.index_select(0, looked).float()
        mended = self._guesser.guesses(again, [rows.looks[place] for place in places])
        for place, tokens, chances in zip(places, mended.tokens, mended.chances, strict=True):
            guesses.tokens[place], guesses.chances[place] = tokens, chances
