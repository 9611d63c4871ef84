"""A draft in blocks of 8 and 4 bits on an x86-64 processor, by the project's kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from draft_service.engine.draft_engine import Extension, Guesses
from draft_service.engine.memory import SlotMemory
from draft_service.engine.native_guesser import NativeGuesser
from draft_service.engine.rows import Rows, rows_of
from foredraft.config import EngineConfig, usable_cores
from foredraft.engine.kv import BlockPool, block_bytes
from foredraft.engine.model_config import read_model_config
from foredraft.engine.model_info import read_model_info
from foredraft.engine.native.large_pages import LargePages
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.plan import NativePlan
from foredraft.engine.native.transformer import NativeTransformer
from foredraft.engine.native.weights import read_native
from foredraft.engine.output_ids import OutputIds, read_output_ids
from foredraft.engine.weights import check_weights
from foredraft.wire.messages import ModelInfo
from kernels.cpu.team import Team

log = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_CHUNK = 64
# That share a pass, which is some 20 MB of weights. Helpers take what cores are left, so they cost
# the target little where it computes at the same time.
_MOST_THREADS = 4


class NativeEngine:
    """A `DraftEngine` of its own weights."""

    def __init__(
        self,
        model: NativeTransformer,
        memory: SlotMemory,
        info: ModelInfo,
        target: ModelInfo,
        known: OutputIds | None,
    ) -> None:
        self.info = info
        self.chunk = _CHUNK
        self._model = model
        self._memory = memory
        vocab_size = min(target.vocab_size, info.vocab_size)
        self._guesser = NativeGuesser(target, vocab_size, known)

    @classmethod
    def load(cls, settings: EngineConfig, target: ModelInfo) -> NativeEngine:
        """Load weights and take the memory.

        Raises:
            UnsupportedModel: the directory holds no model that can be run.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        config = read_model_config(settings.model)
        check_weights(settings.model, config)
        info = read_model_info(settings.model, config, "int8")
        known = read_output_ids(settings.model, config.vocab_rows, info.vocab_size, _CPU)
        make_linear = partial(Packed.of, pages=LargePages())
        weights = read_native(settings.model, config, make_linear, known, fewer_bits=True)
        blocks = settings.kv_memory_mib * 2**20 // block_bytes(config, torch.float32)
        memory = SlotMemory(config, blocks, torch.float32, _CPU)
        model = NativeTransformer(config, weights, memory.layers, Team(_threads()))
        log.info("draft %s on the processor in int8: %d blocks", info.model_id, blocks)
        return cls(model, memory, info, target, known)

    @property
    def pool(self) -> BlockPool:
        return self._memory.pool

    def warm_up(self) -> None:
        """Run a chunk and a row: memory comes when it is first touched."""
        count = min(self.chunk, self.info.context_length - 1)
        blocks = self.pool.allocate_run(self.pool.blocks_for(count + 1))
        if blocks is None:
            return
        self.prefill(blocks, [0] * count, 0)
        self.extend([Extension(blocks, count, [0], [], [], [None])])
        self.pool.free(blocks)

    @torch.inference_mode()
    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the entries of committed tokens at positions start..start+len(tokens)-1."""
        self._memory.settle()
        rows = rows_of([Extension(blocks, start, tokens, [], [], [])])
        self._model.write(tokens, plan_rows(rows))

    @torch.inference_mode()
    def extend(
        self, batch: Sequence[Extension], meanwhile: Callable[[], None] = lambda: None
    ) -> Guesses:
        """Write the entries of new rows; guesses in the order of the looks."""
        self._memory.settle()
        rows = rows_of(batch)
        meanwhile()
        return self._guesser.guesses(self._logits(rows), rows.looks)

    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy entries from slot to slot of one sequence; all reads come before the writes."""
        self._memory.move(blocks, pairs)

    @torch.inference_mode()
    def relocate(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Copy all entries of ``old`` to the beginning of ``new``."""
        self._memory.relocate(old, new)

    @torch.inference_mode()
    def device_ms(self, batch: Sequence[Extension]) -> float:
        """Milliseconds of the pass without its guesses. For benchmarks."""
        self._memory.settle()
        rows = rows_of(batch)
        started = perf_counter()
        self._logits(rows)
        return (perf_counter() - started) * 1000

    def _logits(self, rows: Rows) -> Tensor:
        """Of the rows that are looked at: float32 [looks, columns]."""
        hidden = self._model.hidden(rows.tokens, plan_rows(rows))
        if len(rows.looked) < len(rows):
            hidden = hidden[rows.looked]
        return self._model.logits(hidden)[:, : self._guesser.columns]


def _threads() -> int:
    """As many as the library has, or more: those of the library wait for each other."""
    return max(torch.get_num_threads(), min(usable_cores(), _MOST_THREADS))


def plan_rows(rows: Rows) -> NativePlan:
    """Each row sees the first slots of its sequence, then those of its line."""
    # In lists: for so few numbers an operation of numpy's costs more than all of them.
    ranges: list[tuple[int, int, int, int]] = []
    own: list[int] = []
    begin, all_shared = 0, sum(piece.used for piece in rows.pieces)
    for piece in rows.pieces:
        first = piece.first
        for line, (*_, seen, _) in zip(
            rows.lines[piece.rows], rows.numbers[piece.rows], strict=True
        ):
            ranges.append((begin, seen, all_shared + len(own), len(line)))
            own += [first + slot for slot in line]
        begin += piece.used
    index = [np.arange(piece.first, piece.first + piece.used) for piece in rows.pieces]
    index.append(np.array(own, dtype=np.int64))
    return NativePlan(
        positions=np.array(rows.positions),
        slots=np.array(rows.slots),
        index=np.concatenate(index).astype(np.int32),
        ranges=np.array(ranges),
        longest=max([seen + more for _, seen, _, more in ranges]),
    )
