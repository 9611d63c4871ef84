"""The forward pass over the rows of a step, made of kernels for x86-64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.plan import NativePlan
from foredraft.engine.native.routines import Routines
from foredraft.engine.native.weights import NativeWeights
from foredraft.engine.rotary import Rotary
from kernels.cpu.team import Team

_ROWS = 64  # that there is room for at first


class NativeTransformer:
    """One model; a row's result is the same in any company. All activations are float32."""

    def __init__(
        self,
        config: ModelConfig,
        weights: NativeWeights[Packed],
        memory: Sequence[Tensor],
        team: Team,
    ) -> None:
        """``memory``: of every layer keys and values, float32 [2, kv_heads, slots, head_dim]."""
        self._config = config
        self._weights = weights
        self._memory = memory
        self._team = team
        self._turns = _turn_table(Rotary(config, torch.device("cpu")).table)
        self._routines = self._with_room(_ROWS)

    def hidden(self, tokens: Sequence[int], plan: NativePlan) -> Tensor:
        """Run rows through all layers and write their KV.

        Returns:
            float32 [rows, hidden], until the next pass.
        """
        self._run(tokens, plan, entries_only=False)
        return self._routines.x[: plan.rows]

    def write(self, tokens: Sequence[int], plan: NativePlan) -> None:
        """`hidden` for the KV alone: the last layer ends there."""
        self._run(tokens, plan, entries_only=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, outputs of the head], of which the vocabulary are the first."""
        return self._routines.logits(hidden)

    def _run(self, tokens: Sequence[int], plan: NativePlan, *, entries_only: bool) -> None:
        known, context = self._weights.embedding.shape[0], len(self._turns)
        if min(tokens) < 0 or max(tokens) >= known or plan.positions.max() >= context:
            raise IndexError(f"tokens must be below {known}, positions below {context}")
        if plan.rows > self._routines.rows:
            self._routines = self._with_room(plan.rows)
        numbers = torch.tensor(tokens, dtype=torch.int64)
        self._routines.run(numbers, plan, entries_only=entries_only)

    def _with_room(self, rows: int) -> Routines:
        return Routines(self._config, self._weights, self._turns, self._memory, self._team, rows)


def _turn_table(table: Tensor) -> Tensor:
    """Cosines and sines [context, head_dim / 2, 2] as `rope_kv_write` takes them."""
    cosines, sines = (part.repeat_interleave(2, dim=-1) for part in table.unbind(-1))
    sines[:, ::2].neg_()
    return torch.stack((cosines, sines), dim=1)
