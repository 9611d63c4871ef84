"""Keys, values and attention of the rows of a step, over the paged memory."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.kv import BLOCK, PagedKV
from foredraft.engine.model_config import ModelConfig
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.plan import NativePlan
from foredraft.engine.native.weights import NativeLayer
from kernels.cpu import attention, rope_kv_write
from kernels.cpu.emitter import LANES
from kernels.cpu.job import Job, float_bits
from kernels.cpu.team import Team


class Attending:
    """The attention of one step.

    out: float32 [rows, heads * head_dim], every layer's in turn.
    """

    def __init__(
        self,
        config: ModelConfig,
        plan: NativePlan,
        kv: PagedKV,
        turns: Tensor,
        qkv: Tensor,
        team: Team,
    ) -> None:
        """``turns``: float32 [rows, 2, head_dim]; ``qkv``: [rows, ..], in which layers begin."""
        self._layers = kv.token_rows
        self.out = torch.empty(plan.rows, config.heads * config.head_dim)
        self._routines = (
            rope_kv_write.compiled_write()["write"],
            attention.compiled_attention(config.head_dim, config.group)["attend"],
        )
        capacity = plan.longest + LANES
        scores = torch.empty(team.threads, config.group, capacity)
        slots, index, ranges = map(torch.from_numpy, (plan.slots, plan.index, plan.ranges))
        self._held = (
            turns,
            qkv,
            team,
            scores,
            slots,
            index,
            ranges,
        )  # jobs know their addresses only
        both = {
            "plane_stride": kv.blocks * BLOCK * config.head_dim,
            "rows": plan.rows,
            "kv_heads": config.kv_heads,
        }
        self._write = Job(
            rope_kv_write.FIELDS,
            qkv=qkv.data_ptr(),
            row_stride=qkv.stride(0),
            eps=float_bits(config.rms_eps),
            turns=turns.data_ptr(),
            slots=slots.data_ptr(),
            heads=config.heads,
            head_dim=config.head_dim,
            **both,
        )
        self._attend = Job(
            attention.FIELDS,
            q=qkv.data_ptr(),
            q_stride=qkv.stride(0),
            out=self.out.data_ptr(),
            out_stride=self.out.stride(0),
            scores=scores.data_ptr(),
            capacity=capacity,
            index=index.data_ptr(),
            ranges=ranges.data_ptr(),
            team=team.address,
            **both,
        )

    def run(self, number: int, layer: NativeLayer[Packed]) -> None:
        """Write the entries of a layer; ``out`` is what its rows attend to."""
        write, attend = self._routines
        memory = self._layers[number].data_ptr()
        self._write.set(
            memory=memory, bias=_address(layer.qkv_bias), norms=_address(layer.head_norms)
        )
        self._write.run(write)
        self._attend.set(memory=memory)
        self._attend.run(attend)


def _address(given: Tensor | None) -> int:
    return 0 if given is None else given.data_ptr()
