"""Runs one model: prefill chunks and steps over its paged KV memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor

from foredraft.config import FP8, INT8, EngineConfig, SettingError
from foredraft.engine.attention import add_product
from foredraft.engine.attention_plan import (
    REACH,
    TILE,
    SequenceRows,
    Summation,
    plan_prefill,
    plan_step,
)
from foredraft.engine.device import choose_device
from foredraft.engine.fake import FakeRunner
from foredraft.engine.kv import BlockPool, PagedKV, block_bytes, moved_slots
from foredraft.engine.model_config import ModelConfig, read_model_config
from foredraft.engine.model_info import read_model_info
from foredraft.engine.native.choice import check_native, prefers_native
from foredraft.engine.precision import Precision, choose_precision
from foredraft.engine.row_tile import LARGEST, RowTile, probe_row_tile, sums_serially
from foredraft.engine.transformer import Tiles, Transformer
from foredraft.engine.weights import check_weights, load_model
from foredraft.wire.messages import ModelInfo

__all__ = ["ModelRunner", "Runner", "SequenceRows", "load_runner"]

log = logging.getLogger(__name__)

_CPU_CHUNK, _GPU_CHUNK = TILE, 4 * TILE


class Runner(Protocol):
    """What the services need of a model. Not thread-safe: one engine thread owns it.

    chunk: prompts are run from multiples of it on. longest: tokens that one call takes at most.
    """

    info: ModelInfo
    chunk: int

    @property
    def longest(self) -> int: ...

    @property
    def kv(self) -> BlockPool: ...

    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None: ...

    def prefill_scored(
        self, blocks: Sequence[int], tokens: Sequence[int], start: int
    ) -> Tensor: ...

    def forward(self, batch: Sequence[SequenceRows]) -> Tensor: ...

    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None: ...

    def scrub(self, blocks: Sequence[int]) -> None: ...


def load_runner(settings: EngineConfig) -> Runner:
    """The model of ``settings``, or the stand-in for it that they ask for.

    Raises:
        UnsupportedModel: the directory holds no model that this engine runs.
        SettingError: a dtype whose kernels do not run here, or whose package is missing.
        InvalidField: no such device, or not with this dtype.
    """
    config = read_model_config(settings.model)
    if settings.fake is not None:
        return FakeRunner(read_model_info(settings.model, config, "fake"), settings.fake)
    if config.context_length == config.sliding_window:
        log.warning("the context is served up to sliding_window: %d", config.sliding_window)
    if settings.dtype == FP8:
        return _load_fp8(settings)
    if settings.dtype == INT8 or prefers_native(settings):
        return _load_native(settings)
    return ModelRunner.load(settings)


def _load_fp8(settings: EngineConfig) -> Runner:
    try:
        from foredraft.engine.fp8.runner import Fp8Runner
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise SettingError("dtype fp8 needs triton: pip install triton") from error
    return Fp8Runner.load(settings)


def _load_native(settings: EngineConfig) -> Runner:
    check_native(settings)
    from foredraft.engine.native.runner import NativeRunner  # where its kernels can be made

    return NativeRunner.load(settings)


class ModelRunner:
    """One model on one device. Not thread-safe: one engine thread owns it."""

    def __init__(
        self,
        model: Transformer,
        kv: PagedKV,
        tiles: Tiles,
        info: ModelInfo,
    ) -> None:
        self._model = model
        self._memory = kv
        self._tiles = tiles
        self._device = model.embedding.device
        self.info = info
        self.chunk = _GPU_CHUNK if self._device.type == "cuda" else _CPU_CHUNK

    @classmethod
    def load(cls, settings: EngineConfig) -> ModelRunner:
        """Load weights, measure the row tiles and take the KV memory.

        Raises:
            UnsupportedModel: the directory holds no model that this engine runs.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = choose_device(settings.device)
        config = read_model_config(settings.model)
        check_weights(settings.model, config)
        precision = choose_precision(settings.dtype, device)
        info = read_model_info(settings.model, config, precision.name)
        tiles = _measure_tiles(config, precision, device, torch.get_num_threads())
        model = load_model(
            settings.model,
            config,
            precision,
            device,
            fixed_launch=tiles.linear.limit is not None,
        )
        blocks = settings.kv_memory_mib * 2**20 // block_bytes(config, precision.activation)
        kv = PagedKV(config, blocks, precision.activation, device)
        log.info(
            "model %s on %s in %s: %d KV blocks, rows padded to %d",
            info.model_id,
            device,
            precision.name,
            blocks,
            tiles.linear.rows,
        )
        return cls(model, kv, tiles, info)

    @property
    def longest(self) -> int:
        return self.chunk

    @property
    def kv(self) -> BlockPool:
        return self._memory.pool

    @torch.inference_mode()
    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the KV of one chunk of prompt, positions start..start+len(tokens)-1.

        ``start`` is a multiple of ``chunk`` and at most ``chunk`` tokens are given, so that a
        position is always computed in the same launch.
        """
        self._run_chunk(blocks, tokens, start)

    @torch.inference_mode()
    def prefill_scored(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Tensor:
        """`prefill`, with the same bits; returns logits of the rows as `forward` does."""
        return self._logits(self._run_chunk(blocks, tokens, start), len(tokens))

    @torch.inference_mode()
    def forward(self, batch: Sequence[SequenceRows]) -> Tensor:
        """Run new rows of many sequences and write their KV.

        Returns:
            Logits over the real vocabulary, float32 [rows, vocab], in the order of the rows.
        """
        plan = plan_step(batch, self._memory, self._tiles.summation, self._device)
        tokens = [token for rows in batch for token in rows.tokens]
        hidden = self._model(self._ids(tokens), plan, self._memory, self._tiles)
        return self._logits(hidden, plan.rows)

    @torch.inference_mode()
    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV from logical slot to logical slot; all reads come before the writes."""
        self._memory.move(*moved_slots(blocks, pairs))

    @torch.inference_mode()
    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose values may not be finite, before they are freed."""
        self._memory.scrub(blocks)

    def _run_chunk(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Tensor:
        plan = plan_prefill(blocks, start, len(tokens), self._memory, self._device)
        return self._model(self._ids(tokens), plan, self._memory, self._tiles)

    def _logits(self, hidden: Tensor, rows: int) -> Tensor:
        return self._model.head(hidden)[:rows, : self.info.vocab_size].float()

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self._device)


@lru_cache(maxsize=8)
@torch.inference_mode()
def _measure_tiles(
    config: ModelConfig, precision: Precision, device: torch.device, threads: int
) -> Tiles:
    """Row tiles, measured on products with this model's widths of input, once per process.

    ``threads`` are those that compute now: libraries choose by their number, too.
    """
    random = torch.Generator().manual_seed(0)

    def sample(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device, precision.activation)

    linear = RowTile(1)
    for width in {config.hidden, config.heads * config.head_dim, config.intermediate}:
        layer = precision.make_linear(sample(config.hidden, width))
        linear = linear.join(probe_row_tile(layer, sample(LARGEST, width)))
    heads = config.kv_heads
    queries = sample(heads, LARGEST, config.head_dim).float()
    keys = sample(heads, 5 * TILE, config.head_dim).float()
    weights = sample(heads, LARGEST, REACH).float()
    values = sample(heads, REACH, config.head_dim).float()
    attention = probe_row_tile(lambda q: torch.bmm(q, keys.transpose(1, 2)), queries)
    for width in range(TILE, REACH + 1, TILE):
        product = partial(torch.bmm, mat2=values[:, :width].contiguous())
        attention = attention.join(probe_row_tile(product, weights[..., :width].contiguous()))
    first = queries[:, : attention.rows].contiguous()
    far, near = (torch.bmm(first, keys[:, :end].transpose(1, 2)) for end in (5 * TILE, TILE))
    if attention.limit is not None or not torch.equal(far[..., :TILE], near):
        log.warning("attention on this device may round a row differently in other company")
    tile = RowTile(attention.rows)
    return Tiles(linear, tile, Summation(serial=sums_serially(add_product, weights, values, tile)))
