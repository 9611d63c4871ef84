"""One draft model on one device, without what equal bits cost a target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from draft_service.engine.attention import PieceAttention
from draft_service.engine.draft_engine import Extension, Guesses
from draft_service.engine.forward import DraftForward
from draft_service.engine.gathered_pass import GatheredPass
from draft_service.engine.guesser import Guesser
from draft_service.engine.memory import SlotMemory
from draft_service.engine.rows import Rows, rows_of
from draft_service.engine.static_pass import FixedPass, StaticPasses
from draft_service.engine.transfer import to_device
from foredraft.config import EngineConfig
from foredraft.engine.device import choose_device
from foredraft.engine.kv import BlockPool, block_bytes
from foredraft.engine.model_config import read_model_config
from foredraft.engine.model_info import read_model_info
from foredraft.engine.output_ids import OutputIds, read_output_ids
from foredraft.engine.precision import choose_precision
from foredraft.engine.transformer import Transformer
from foredraft.engine.weights import check_weights, load_model
from foredraft.wire.messages import ModelInfo

log = logging.getLogger(__name__)

_CPU_CHUNK, _GPU_CHUNK = 64, 256


class LeanEngine:
    """A `DraftEngine` of its own weights.

    static: passes have fixed shapes wherever one fits, and are graphs on a GPU.
    kernels: these passes are the project's kernels; for a GPU, in bfloat16.
    """

    def __init__(
        self,
        model: Transformer,
        memory: SlotMemory,
        info: ModelInfo,
        target: ModelInfo,
        known: OutputIds | None,
        *,
        static: bool,
        kernels: bool,
    ) -> None:
        self.info = info
        self._memory = memory
        self._device = model.embedding.device
        self.chunk = _GPU_CHUNK if self._device.type == "cuda" else _CPU_CHUNK
        self._group = model.config.group
        self._model = model
        self._forward = DraftForward(model)
        vocab_size = min(target.vocab_size, info.vocab_size)
        self._guesser = Guesser(target, vocab_size, known, self._device)
        self._static: StaticPasses | None = None
        if static:
            self._static = StaticPasses(self._fixed_pass(kernels), self._guesser, self._device)

    @classmethod
    def load(
        cls,
        settings: EngineConfig,
        target: ModelInfo,
        *,
        static: bool | None = None,
        kernels: bool | None = None,
    ) -> LeanEngine:
        """Load weights and take the memory.

        ``static`` None: on a GPU. ``kernels`` None: on a GPU that knows bfloat16, in that.

        Raises:
            UnsupportedModel: the directory holds no model that can be run.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = choose_device(settings.device)
        if device.type == "cuda":
            # Nearly every chunk of a prompt has another length, and cuDNN plans anew for each.
            torch.backends.cuda.enable_cudnn_sdp(False)
        config = read_model_config(settings.model)
        check_weights(settings.model, config)
        precision = choose_precision(settings.dtype, device)
        if static is None:
            static = device.type == "cuda"
        if kernels is None:
            kernels = precision.name == "bfloat16" and _has_kernels(device)
        info = read_model_info(settings.model, config, precision.name)
        known = read_output_ids(settings.model, config.vocab_rows, info.vocab_size, device)
        model = load_model(settings.model, config, precision, device, output=known)
        blocks = settings.kv_memory_mib * 2**20 // block_bytes(config, precision.activation)
        memory = SlotMemory(config, blocks, precision.activation, device)
        log.info("draft %s on %s in %s: %d blocks", info.model_id, device, info.dtype, blocks)
        return cls(model, memory, info, target, known, static=static, kernels=kernels)

    @property
    def pool(self) -> BlockPool:
        return self._memory.pool

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a chunk and a row, and capture the graphs that are used the most."""
        count = min(self.chunk, self.info.context_length - 1)
        blocks = self.pool.allocate_run(self.pool.blocks_for(count + 1))
        if blocks is None:
            return
        self.prefill(blocks, [0] * count, 0)
        self.extend([Extension(blocks, count, [0], [], [], [None])])
        self.pool.free(blocks)
        if self._static is not None:
            self._static.warm_up()

    @torch.inference_mode()
    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the entries of committed tokens at positions start..start+len(tokens)-1."""
        self._memory.settle()
        rows = rows_of([Extension(blocks, start, tokens, [], [], [])])
        attention = PieceAttention(self._memory, rows, self._group)
        self._forward.write(self._ids(rows.tokens), self._ids(rows.positions), attention)

    @torch.inference_mode()
    def extend(
        self, batch: Sequence[Extension], meanwhile: Callable[[], None] = lambda: None
    ) -> Guesses:
        """Write the entries of new rows; guesses in the order of the looks."""
        self._memory.settle()
        rows = rows_of(batch)
        shape = None if self._static is None else self._static.shape_of(rows)
        if self._static is not None and shape is not None:
            return self._static.run(rows, shape, meanwhile)
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
        """Milliseconds of the pass alone, its input and guesses on their way included.

        For benchmarks.
        """
        self._memory.settle()
        rows = rows_of(batch)
        shape = None if self._static is None else self._static.shape_of(rows)
        if self._static is None or shape is None:
            return _milliseconds(lambda: self._logits(rows), self._device)
        return _milliseconds(self._static.filled(rows, shape).launch, self._device)

    def _fixed_pass(self, kernels: bool) -> FixedPass:
        if not kernels:
            return GatheredPass(self._forward, self._memory, self._guesser)
        from draft_service.engine.kernel_pass import KernelPass  # Triton: where there is a GPU

        return KernelPass(self._model, self._memory, self._guesser)

    def _logits(self, rows: Rows) -> Tensor:
        """Of the rows that are looked at: float32 [looks, columns]."""
        attention = PieceAttention(self._memory, rows, self._group)
        tokens, positions = self._ids(rows.tokens), self._ids(rows.positions)
        hidden = self._forward.hidden(tokens, positions, attention)
        if len(rows.looked) < len(rows):
            hidden = hidden[rows.looked]
        return self._forward.head(hidden)[:, : self._guesser.columns].float()

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return to_device(numbers, self._device)


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """How long the device takes for ``work``."""
    if device.type != "cuda":
        started = perf_counter()
        work()
        return (perf_counter() - started) * 1000
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))
