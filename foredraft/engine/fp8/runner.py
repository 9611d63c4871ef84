"""Runs a target in FP8: the same protocol as `ModelRunner`, other numbers.

A step's rows have the same bits in any company: every operation looks at one row, or is a kernel
(or a reference) that promises it. In a chunk of a prompt the position before each row is committed
already; a row there has the bits of its place, however many chunks are run in one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.config import FP8, FP8_CAPABILITY, EngineConfig
from foredraft.engine.attention_plan import TILE, SequenceRows
from foredraft.engine.device import choose_device
from foredraft.engine.fp8.compile_ahead import compiling_ahead
from foredraft.engine.fp8.device_step import DeviceStep, StepLimits
from foredraft.engine.fp8.graphs import MOST_ROWS, Chunks, StepGraphs
from foredraft.engine.fp8.inputs import Bounds, Inputs, table_blocks
from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.kv import CodedKV
from foredraft.engine.fp8.model import Model
from foredraft.engine.fp8.operations import Operations
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.weights import Read, quantise
from foredraft.engine.kv import BlockPool, moved_slots
from foredraft.engine.model_config import (
    ModelConfig,
    UnsupportedModel,
    check_whole,
    read_model_config,
)
from foredraft.engine.model_info import read_model_info
from foredraft.engine.weights import opened_weights
from foredraft.wire.messages import ModelInfo
from kernels.kv_layout import HEAD_DIMS

log = logging.getLogger(__name__)

# Rows of the launches that prompts are run in: the first is a chunk.
_CPU_LAUNCHES, _GPU_LAUNCHES = (TILE,), (4 * TILE, 8 * TILE, 16 * TILE)
_MOST_GROUP = 16  # query heads per KV head that attention takes


class Fp8Runner:
    """One model on one device. Not thread-safe: one engine thread owns it."""

    def __init__(self, model: Model, kv: CodedKV, info: ModelInfo) -> None:
        self.info = info
        self._model = model
        self._memory = kv
        self._device = model.weights.embedding.device
        launches = _GPU_LAUNCHES if self.on_gpu else _CPU_LAUNCHES
        self.chunk = launches[0]
        blocks = table_blocks(info.context_length, 0)
        self._launches = {
            rows: Chunks(model, Inputs.empty(1, rows, blocks, self._device)) for rows in launches
        }
        self._graphs = StepGraphs(model, info.context_length) if self.on_gpu else None

    @classmethod
    def load(cls, settings: EngineConfig) -> Fp8Runner:
        """Read, quantise, and take the KV memory.

        Raises:
            UnsupportedModel: the directory holds no model that this engine runs in FP8.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        config = read_model_config(settings.model)
        check_whole(settings.model)
        info = read_model_info(settings.model, config, FP8)
        device, operations = choose_operations(settings.device)
        with opened_weights(settings.model, config) as read:
            return cls.build(read, config, info, device, operations, settings.kv_memory_mib)

    @classmethod
    @torch.inference_mode()
    def build(
        cls,
        read: Read,
        config: ModelConfig,
        info: ModelInfo,
        device: torch.device,
        operations: Operations,
        kv_memory_mib: int,
    ) -> Fp8Runner:
        """A runner of the model whose tensors ``read`` gives.

        Raises:
            UnsupportedModel: no kernel takes its heads, or a weight is not finite.
        """
        check_heads(config)
        weights = quantise(read, config, info.vocab_size, device, operations)
        kv = CodedKV(config, kv_memory_mib, device)
        log.info(
            "model %s on %s: linear layers, attention and KV of all %d layers in FP8 by %s, "
            "the head in bfloat16; %d KV blocks",
            info.model_id,
            device,
            config.layers,
            operations.name,
            kv.pool.total_blocks,
        )
        return cls(Model(weights, kv.memory, operations), kv, info)

    @property
    def on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def device_step(self, limits: StepLimits) -> DeviceStep:
        """Whole steps of the model over its KV, without the host."""
        return DeviceStep(self._model, limits, self.info.vocab_size)

    @property
    def longest(self) -> int:
        return max(self._launches)

    @property
    def kv(self) -> BlockPool:
        return self._memory.pool

    @torch.inference_mode()
    def warm(self) -> None:
        """Compile and capture what prompts are run in, on a GPU, before the first one comes."""
        if not self.on_gpu:
            return
        with compiling_ahead():
            for launch in self._launches.values():
                launch.compile()
        for launch in self._launches.values():
            launch.run((), (), 0)

    @torch.inference_mode()
    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the KV of some of a prompt, positions start..start+len(tokens)-1.

        ``start`` is a multiple of ``chunk``.
        """
        while tokens:
            rows = self._rows_for(len(tokens))
            self._launches[rows].run(blocks, tokens[:rows], start)
            start, tokens = start + rows, tokens[rows:]

    @torch.inference_mode()
    def prefill_scored(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Tensor:
        """`prefill` of at most a chunk, with the same bits; logits of the rows as `forward`'s."""
        x = self._launches[self._rows_for(len(tokens))].run(blocks, tokens, start)
        return self._model.chunk_logits(x[: len(tokens)])

    @torch.inference_mode()
    def forward(self, batch: Sequence[SequenceRows]) -> Tensor:
        """Run new rows of many sequences and write their KV.

        Returns:
            Logits over the real vocabulary, float32 [rows, vocab], in the order of the rows.
            On a GPU the next call may overwrite them.
        """
        counts = [len(sequence.tokens) for sequence in batch]
        rows = sum(counts)
        if self._graphs is not None and rows <= MOST_ROWS:
            return self._graphs.run(batch)[:rows]
        blocks = table_blocks(self.info.context_length, max(counts))
        inputs = Inputs.empty(len(batch), rows, blocks, self._device)
        inputs.fill(batch)
        return self._model.step(inputs, Bounds(max(counts), self.info.context_length))

    @torch.inference_mode()
    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV from logical slot to logical slot; all reads come before the writes."""
        self._memory.move(*moved_slots(blocks, pairs))

    @torch.inference_mode()
    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose values may not be finite, before they are freed."""
        self._memory.scrub(blocks)

    def _rows_for(self, left: int) -> int:
        """Of the next launch: the largest that is filled, or the smallest."""
        return max((rows for rows in self._launches if rows <= left), default=min(self._launches))


def choose_operations(device: str) -> tuple[torch.device, Operations]:
    """Kernels on a GPU of compute capability 8.9 or newer; elsewhere references, on the CPU."""
    chosen = choose_device(device)
    if chosen.type == "cuda" and torch.cuda.get_device_capability(chosen) >= FP8_CAPABILITY:
        return chosen, KernelOperations()
    log.warning(
        "dtype fp8 is fast on a GPU of compute capability 8.9 or newer only: "
        "torch references compute the same on the CPU, slowly"
    )
    return torch.device("cpu"), ReferenceOperations()


def check_heads(config: ModelConfig) -> None:
    """Raises UnsupportedModel if attention's kernels do not take the model's heads."""
    step, largest = HEAD_DIMS
    if config.head_dim % step or config.head_dim > largest:
        allowed = f"a multiple of {step} up to {largest}"
        raise UnsupportedModel(f"head_dim must be {allowed} with dtype fp8, not {config.head_dim}")
    if config.group > _MOST_GROUP:
        raise UnsupportedModel(
            f"a KV head must serve at most {_MOST_GROUP} query heads with dtype fp8, "
            f"not {config.group}"
        )
