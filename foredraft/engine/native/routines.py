"""The routines of a pass over one memory, with room for so many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.plan import NativePlan
from foredraft.engine.native.products import Products
from foredraft.engine.native.weights import NativeLayer, NativeWeights
from kernels.cpu import attention, embed, rope_kv_write
from kernels.cpu.block_rows import BLOCK
from kernels.cpu.emitter import LANES
from kernels.cpu.job import float_bits
from kernels.cpu.program import Program, Step
from kernels.cpu.team import Team

_BEHIND_ENTRIES = 4  # steps of a layer that come when its keys and values are written


class Routines:
    """Layers one after another, over buffers that all of them share.

    rows: as many fit.
    x: float32 [rows, hidden]: what comes out, until the next pass.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: NativeWeights[Packed],
        turns: Tensor,
        memory: Sequence[Tensor],
        team: Team,
        rows: int,
    ) -> None:
        """``turns``: [context, 2, head_dim], for `rope_kv_write`; ``memory``: of every layer."""
        first, heads = weights.layers[0], config.heads * config.head_dim
        widths = (config.hidden, first.qkv.outputs, heads, first.gate_up.outputs)
        self.rows = rows
        self.x, self._qkv, self._heads, self._gate_up = (torch.empty(rows, n) for n in widths)
        self._config, self._weights, self._turns, self._memory = config, weights, turns, memory
        self._team = team
        widest = max(config.hidden, config.intermediate, heads)
        self._products = Products(team, rows, widest, config.rms_eps)
        steps = [self._embed()]
        for layer, entries in zip(weights.layers, memory, strict=True):
            steps += self._layer(layer, entries)
        self._program = Program(steps)
        logits = torch.empty(1, weights.head.outputs)
        head = [self._products.step("normed", self.x, weights.head, logits, weights.last_norm)]
        if weights.exact_head is not None:
            head.append(self._products.rescore(logits, weights.exact_head))
        self._head = Program(head)

    def run(self, tokens: Tensor, plan: NativePlan, *, entries_only: bool) -> None:
        """Write keys and values of new rows, and ``x`` unless only ``entries_only`` are wanted.

        ``tokens``: int64 [rows].
        """
        capacity = plan.longest + LANES
        scores = torch.empty(self._team.threads, self._config.group, capacity)
        self._program.set(
            rows=plan.rows,
            tokens=tokens.data_ptr(),
            positions=plan.positions.ctypes.data,
            slots=plan.slots.ctypes.data,
            index=plan.index.ctypes.data,
            ranges=plan.ranges.ctypes.data,
            scores=scores.data_ptr(),
            capacity=capacity,
        )
        self._program.run(len(self._program) - _BEHIND_ENTRIES if entries_only else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of at most ``rows`` rows: float32 [rows, outputs of the head]."""
        logits = torch.empty(len(hidden), self._weights.head.outputs)
        self._head.set(x=hidden.data_ptr(), y=logits.data_ptr(), rows=len(hidden))
        self._head.run()
        return logits

    def _embed(self) -> Step:
        embedding = self._weights.embedding
        values = {
            "levels": embedding.levels.data_ptr(),
            "scales": embedding.scales.data_ptr(),
            "least": _address(embedding.least),
            "x": self.x.data_ptr(),
            "blocks": self._config.hidden // BLOCK,
        }
        return Step(embed.compiled_embed().address("embed"), embed.FIELDS, values)

    def _layer(self, layer: NativeLayer[Packed], entries: Tensor) -> Iterator[Step]:
        step = self._products.step
        yield step("normed", self.x, layer.qkv, self._qkv, layer.input_norm)
        yield self._write(layer, entries)
        yield self._attend(entries)
        yield step("plain", self._heads, layer.out, self.x)
        yield step("normed", self.x, layer.gate_up, self._gate_up, layer.post_norm)
        yield step("gated", self._gate_up, layer.down, self.x)

    def _write(self, layer: NativeLayer[Packed], entries: Tensor) -> Step:
        config = self._config
        values = {
            "qkv": self._qkv.data_ptr(),
            "row_stride": self._qkv.stride(0),
            "bias": _address(layer.qkv_bias),
            "norms": _address(layer.head_norms),
            "eps": float_bits(config.rms_eps),
            "turns": self._turns.data_ptr(),
            "memory": entries.data_ptr(),
            "plane_stride": entries.stride(1),
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "head_dim": config.head_dim,
        }
        routine = rope_kv_write.compiled_write().address("write")
        return Step(routine, rope_kv_write.FIELDS, values)

    def _attend(self, entries: Tensor) -> Step:
        config = self._config
        values = {
            "q": self._qkv.data_ptr(),
            "q_stride": self._qkv.stride(0),
            "memory": entries.data_ptr(),
            "plane_stride": entries.stride(1),
            "out": self._heads.data_ptr(),
            "out_stride": self._heads.stride(0),
            "kv_heads": config.kv_heads,
            "team": self._team.address,
        }
        compiled = attention.compiled_attention(config.head_dim, config.group)
        return Step(compiled.address("attend"), attention.FIELDS, values)


def _address(given: Tensor | None) -> int:
    return 0 if given is None else given.data_ptr()
