"""Passes of fixed shapes over memory that stays where it is: a GPU replays them as graphs.

What a pass is given goes over in one copy, and its guesses come back in one. A shape is captured
when it is first used; where there are no graphs its operations are made one by one, the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.engine.attention import GatheredAttention
from draft_service.engine.draft_engine import Guesses
from draft_service.engine.forward import DraftForward
from draft_service.engine.guesser import Guesser
from draft_service.engine.memory import SlotMemory
from draft_service.engine.rows import Rows
from foredraft.engine.noise import noise_key
from foredraft.engine.sampling import only_noise

_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_REACHES = (256, 512, 1024, 2048, 4096, 8192)
_WARM_REACHES = _REACHES[:3]
_MOST_COPIED = 2**17  # entries of all rows in one layer
_LINE = 32  # ancestors of a node, itself included
_TOKEN, _POSITION, _SLOT, _FIRST, _SEEN, _LAST, _KEY, _TEMPERATURE, _LINES = range(9)
_COLUMNS = _LINES + _LINE


@dataclass(frozen=True, slots=True)
class Shape:
    """``reach``: slots that a row may see. ``noisy``: some rows' tokens are drawn with noise."""

    rows: int
    reach: int
    noisy: bool


def shape_of(rows: Rows) -> Shape | None:
    """The smallest shape that holds these rows; None if there is none."""
    if len(rows) > _ROWS[-1] or rows.reach > _REACHES[-1]:
        return None
    count = _ROWS[bisect_left(_ROWS, len(rows))]
    reach = _REACHES[bisect_left(_REACHES, rows.reach)]
    if count * reach > _MOST_COPIED or max(map(len, rows.lines)) > _LINE:
        return None
    noisy = any(look is not None and only_noise(look) for look in rows.looks)
    return Shape(count, reach, noisy)


class StaticPass:
    """One shape.

    columns: what its rows are, int64 [rows, columns].
    numbers: 0 .. reach - 1.
    """

    def __init__(
        self,
        shape: Shape,
        columns: Tensor,
        numbers: Tensor,
        forward: DraftForward,
        memory: SlotMemory,
        guesser: Guesser,
    ) -> None:
        self._shape = shape
        self._columns = columns
        self._numbers = numbers
        self._forward = forward
        self._memory = memory
        self._guesser = guesser
        self._graph: torch.cuda.CUDAGraph | None = None
        self.logits = self.best = torch.empty(0)

    def capture(self, pool: Any) -> None:
        """Make a graph of the pass; its memory comes from ``pool``, which graphs share."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._compute()  # libraries set themselves up here, which a graph must not hold
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._compute()
        self._graph = graph

    def launch(self) -> None:
        """Compute ``logits`` [rows, columns] and ``best``, as `Guesser.best` says."""
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def _compute(self) -> None:
        columns = self._columns[:, :_LINES].T.contiguous()
        token, position, slot, first, seen, last, key, _ = columns
        lines = self._columns[:, _LINES:]
        attention = GatheredAttention(self._memory, slot, first, seen, last, lines, self._numbers)
        logits = self._forward.logits(token, position, attention)
        self.logits = logits[:, : self._guesser.columns].float()
        scores = self.logits
        if self._shape.noisy:
            temperatures = self._columns.view(torch.float64)[:, _TEMPERATURE, None].float()
            scores = self._guesser.perturbed(scores, key[:, None], temperatures)
        self.best = self._guesser.best(scores)


class StaticPasses:
    """All shapes, and the memory that they share."""

    def __init__(self, forward: DraftForward, memory: SlotMemory, guesser: Guesser) -> None:
        self._forward = forward
        self._memory = memory
        self._guesser = guesser
        device = memory.entries.device
        self._on_gpu = device.type == "cuda"
        size = (_ROWS[-1], _COLUMNS)
        self._sent = torch.zeros(size, dtype=torch.int64, pin_memory=self._on_gpu)
        self._numbers: NDArray[np.int64] = self._sent.numpy()
        self._columns = torch.zeros(size, dtype=torch.int64, device=device)
        self._reach = torch.arange(_REACHES[-1], device=device)
        self._came = torch.zeros(_ROWS[-1], 2, guesser.width, pin_memory=self._on_gpu)
        self._pool: Any = torch.cuda.graph_pool_handle() if self._on_gpu else None
        self._passes: dict[Shape, StaticPass] = {}

    def warm_up(self) -> None:
        """Make what is used the most, short texts. Later a capture keeps all others waiting."""
        # What an earlier pass was given may reach beyond a shorter shape, which computes with it.
        self._columns.zero_()
        for reach, count, noisy in product(_WARM_REACHES, _ROWS, (False, True)):
            self._pass(Shape(count, reach, noisy)).launch()

    def run(self, rows: Rows, shape: Shape) -> Guesses:
        """One pass; the memory must be settled."""
        made = self.sent(rows, shape)
        made.launch()
        return self._read(made, rows, shape)

    def sent(self, rows: Rows, shape: Shape) -> StaticPass:
        """The pass of that shape, whose input is on its way."""
        self._fill(rows, shape)
        self._columns[: shape.rows].copy_(self._sent[: shape.rows], non_blocking=True)
        return self._pass(shape)

    def _pass(self, shape: Shape) -> StaticPass:
        made = self._passes.get(shape)
        if made is None:
            columns, numbers = self._columns[: shape.rows], self._reach[: shape.reach]
            made = StaticPass(shape, columns, numbers, self._forward, self._memory, self._guesser)
            if self._pool is not None:
                made.capture(self._pool)
            self._passes[shape] = made
        return made

    def _fill(self, rows: Rows, shape: Shape) -> None:
        """Rows that nobody needs are token 0 at position 0 in slot 0, which nobody owns."""
        count, numbers = len(rows), self._numbers[: shape.rows]
        numbers[count:] = 0
        numbers = numbers[:count]
        numbers[:, _TOKEN] = rows.tokens
        numbers[:, _POSITION] = rows.positions
        numbers[:, _SLOT] = rows.slots
        numbers[:, _SEEN] = rows.seen
        for piece in rows.pieces:
            numbers[piece.rows, _FIRST] = piece.first
            numbers[piece.rows, _LAST] = piece.used - 1
        numbers[:, _LINES:] = (numbers[:, _SLOT] - numbers[:, _FIRST])[:, None]
        for row, line in zip(numbers, rows.lines, strict=True):
            row[_LINES : _LINES + len(line)] = line
        if shape.noisy:
            self._fill_noise(rows, numbers)

    def _fill_noise(self, rows: Rows, numbers: NDArray[np.int64]) -> None:
        temperatures = numbers[:, _TEMPERATURE].view(np.float64)
        temperatures[:] = 0.0
        for row, look in zip(rows.looked, rows.looks, strict=True):
            if look is not None and only_noise(look):
                numbers[row, _KEY] = noise_key(look.params.seed, look.choice, look.position)
                temperatures[row] = look.params.temperature

    def _read(self, made: StaticPass, rows: Rows, shape: Shape) -> Guesses:
        came = self._came[: shape.rows]
        came.copy_(made.best, non_blocking=True)
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()
        found: NDArray[np.float32] = came.numpy()[rows.looked]
        guesses = Guesses(found[:, 0].astype(np.int64).tolist(), found[:, 1].tolist())
        self._mend(guesses, made, rows)
        return guesses

    def _mend(self, guesses: Guesses, made: StaticPass, rows: Rows) -> None:
        """Rows with penalties, bias or filters are scored again, one by one."""
        places = [
            place
            for place, look in enumerate(rows.looks)
            if look is not None and not only_noise(look)
        ]
        if not places:
            return
        again = made.logits[[rows.looked[place] for place in places]]
        mended = self._guesser.guesses(again, [rows.looks[place] for place in places])
        for place, tokens, chances in zip(places, mended.tokens, mended.chances, strict=True):
            guesses.tokens[place], guesses.chances[place] = tokens, chances
