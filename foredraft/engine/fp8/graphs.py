"""Passes that the host prepares, as CUDA graphs: chains, one per bucket, and chunks of prompts.

A launch from Python takes longer than most kernels of a pass. A graph is captured when it is first
needed, after a run that compiles its kernels and makes its workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.capture import captured
from foredraft.engine.fp8.inputs import Bounds, Inputs, next_power, table_blocks
from foredraft.engine.fp8.model import Model

MOST_ROWS = 128  # more run without a graph


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes that steps are padded to."""

    slots: int
    rows: int
    most_rows: int  # of one sequence

    @classmethod
    def of(cls, batch: Sequence[SequenceRows]) -> Bucket:
        """The smallest powers of two that hold ``batch``."""
        counts = [len(sequence.tokens) for sequence in batch]
        return cls(next_power(len(batch)), next_power(sum(counts)), next_power(max(counts)))


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: Inputs
    graph: torch.cuda.CUDAGraph
    logits: Tensor


class StepGraphs:
    """Runs steps of one model; logits are overwritten by the next step."""

    def __init__(self, model: Model, context: int) -> None:
        self._model = model
        self._context = context
        self._captured: dict[Bucket, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()  # one for all: only one of them runs at a time

    def run(self, batch: Sequence[SequenceRows]) -> Tensor:
        """Logits of the rows of ``batch``, and of padding behind them."""
        bucket = Bucket.of(batch)
        known = self._captured.get(bucket)
        if known is None:
            known = self._captured[bucket] = self._capture(bucket, batch)
        known.inputs.fill(batch)
        known.graph.replay()
        return known.logits

    def _capture(self, bucket: Bucket, batch: Sequence[SequenceRows]) -> _Captured:
        """For ``batch``, or any other that fits."""
        device = self._model.memory.codes.device
        blocks = table_blocks(self._context, bucket.most_rows)
        inputs = Inputs.empty(bucket.slots, bucket.rows, blocks, device)
        inputs.fill(batch)
        bounds = Bounds(bucket.most_rows, self._context)
        graph, logits = _capture(lambda: self._model.step(inputs, bounds), self._pool)
        return _Captured(inputs, graph, logits)


class Chunks:
    """Runs chunks of a prompt in launches of one shape, on a GPU as a graph."""

    def __init__(self, model: Model, inputs: Inputs) -> None:
        """``inputs``: of one sequence and the launch's rows."""
        self._model = model
        self._inputs = inputs
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def compile(self) -> None:
        """Launch all kernels that there are, for who only compiles them."""
        self._model.first_layer().chunk(self._inputs)

    def run(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Tensor:
        """What `Model.chunk` returns for positions from ``start`` on; the next run overwrites it.

        With no tokens all of it is padding.
        """
        self._inputs.fill_chunk(blocks, tokens, start)
        if not self._inputs.memory.is_cuda:
            return self._model.chunk(self._inputs)
        if self._captured is None:
            pool = torch.cuda.graph_pool_handle()
            self._captured = _capture(partial(self._model.chunk, self._inputs), pool)
        graph, x = self._captured
        graph.replay()
        return x


def _capture(run: Callable[[], Tensor], pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of ``run``, and where its result will be.

    It is run before, and writes then what the graph will write.
    """
    run()
    torch.cuda.synchronize()
    with captured(pool) as graph:
        result = run()
    return graph, result
