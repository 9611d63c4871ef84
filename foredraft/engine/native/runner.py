"""Runs a target in blocks of 8 or 4 bits on an x86-64 processor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from foredraft.config import EngineConfig
from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.kv import BlockPool, PagedKV, block_bytes, moved_slots
from foredraft.engine.model_config import read_model_config
from foredraft.engine.model_info import read_model_info
from foredraft.engine.native.large_pages import LargePages
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.plan import NativePlan, plan_prefill, plan_step
from foredraft.engine.native.transformer import NativeTransformer
from foredraft.engine.native.weights import read_native
from foredraft.wire.messages import ModelInfo
from kernels.cpu.team import Team

log = logging.getLogger(__name__)

_CHUNK = 64


class NativeRunner:
    """One model. Not thread-safe: one engine thread owns it."""

    def __init__(self, model: NativeTransformer, kv: PagedKV, info: ModelInfo) -> None:
        self._model = model
        self._memory = kv
        self.info = info
        self.chunk = _CHUNK

    @classmethod
    def load(cls, settings: EngineConfig) -> NativeRunner:
        """Load weights and take the KV memory.

        Raises:
            UnsupportedModel: the directory holds no model that this engine runs.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        config = read_model_config(settings.model)
        info = read_model_info(settings.model, config, "int8")
        weights = read_native(settings.model, config, partial(Packed.of, pages=LargePages()))
        blocks = settings.kv_memory_mib * 2**20 // block_bytes(config, torch.float32)
        kv = PagedKV(config, blocks, torch.float32, torch.device("cpu"))
        model = NativeTransformer(config, weights, kv.slot_rows, Team(torch.get_num_threads()))
        log.info("model %s on the processor in int8: %d KV blocks", info.model_id, blocks)
        return cls(model, kv, info)

    @property
    def longest(self) -> int:
        return self.chunk

    @property
    def kv(self) -> BlockPool:
        return self._memory.pool

    @torch.inference_mode()
    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the KV of one chunk of prompt, positions start..start+len(tokens)-1."""
        self._model.write(tokens, plan_prefill(blocks, start, len(tokens)))

    @torch.inference_mode()
    def prefill_scored(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Tensor:
        """`prefill`, with the same bits; returns logits of the rows as `forward` does."""
        return self._logits(tokens, plan_prefill(blocks, start, len(tokens)))

    @torch.inference_mode()
    def forward(self, batch: Sequence[SequenceRows]) -> Tensor:
        """Run new rows of many sequences and write their KV.

        Returns:
            Logits over the real vocabulary, float32 [rows, vocab], in the order of the rows.
        """
        tokens = [token for rows in batch for token in rows.tokens]
        return self._logits(tokens, plan_step(batch))

    @torch.inference_mode()
    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV from logical slot to logical slot; all reads come before the writes."""
        self._memory.move(*moved_slots(blocks, pairs))

    @torch.inference_mode()
    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose values may not be finite, before they are freed."""
        self._memory.scrub(blocks)

    def _logits(self, tokens: Sequence[int], plan: NativePlan) -> Tensor:
        return self._model.logits(self._model.hidden(tokens, plan))[:, : self.info.vocab_size]
