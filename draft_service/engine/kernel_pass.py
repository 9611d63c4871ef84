"""A pass of a fixed shape in bfloat16 by the project's kernels, for a GPU.

Half as many launches as the library's operations need, which is what such a small pass consists of.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draft_service.engine.guesser import Guesser
from draft_service.engine.memory import SlotMemory
from draft_service.engine.pass_input import LINE, PassInput
from draft_service.engine.rows import Rows
from draft_service.engine.static_pass import ROWS, Shape, rows_for
from foredraft.engine.transformer import Transformer
from kernels.best_guesses import best_guesses
from kernels.embed_norm import embed_norm
from kernels.rmsnorm_residual_quant import rmsnorm_residual
from kernels.rope_kv_write import HeadNorms
from kernels.rope_slot_write import rope_slot_write
from kernels.slot_attention import SlotParts, slot_attention
from kernels.slot_rows import SlotRows
from kernels.swiglu import swiglu


class KernelPass:
    """As `FixedPass` says. A shape is a number of rows: texts have any length, rows any noise."""

    warm = tuple(Shape(count) for count in ROWS)

    def __init__(self, model: Transformer, memory: SlotMemory, guesser: Guesser) -> None:
        self._model = model
        self._memory = memory
        self._guesser = guesser
        config = model.config
        self._eps = config.rms_eps
        # The weight of every norm is part of the layer behind it.
        self._ones = torch.ones(config.hidden, device=model.embedding.device)
        # One for all layers: each kernel begins with the end of the one before it.
        self._parts = SlotParts.empty(
            ROWS[-1], config.heads, config.kv_heads, config.head_dim, model.embedding.device
        )
        self._head_norms = [
            None if layer.head_norms is None else HeadNorms(layer.head_norms.float(), self._eps)
            for layer in model.layers
        ]

    def shape_of(self, rows: Rows) -> Shape | None:
        count = rows_for(rows)
        return None if count is None or rows.deepest > LINE else Shape(count)

    def compute(self, given: PassInput, shape: Shape) -> tuple[Tensor, Tensor]:
        model, turns = self._model, self._model.rotary.table
        rows = SlotRows(
            given.position, given.slot, given.first, given.seen, given.depth, given.lines
        )
        x, normed = embed_norm(model.embedding, given.token, self._eps)
        for layer, memory, norms in zip(
            model.layers, self._memory.layers, self._head_norms, strict=True
        ):
            qkv = layer.qkv(normed)
            rope_slot_write(qkv, turns, rows, memory, norms)
            normed = self._added(x, layer.out(self._attend(qkv, rows, memory)))
            normed = self._added(x, layer.down(swiglu(layer.gate_up(normed))))
        logits = model.head(normed)[:, : self._guesser.columns]
        best = best_guesses(logits, self._guesser.ids, given.key, given.heat)
        return logits, best[..., : self._guesser.width]

    def _attend(self, qkv: Tensor, rows: SlotRows, memory: Tensor) -> Tensor:
        return slot_attention(qkv, rows, memory, self._parts)

    def _added(self, x: Tensor, more: Tensor) -> Tensor:
        """The norm of x + more, which x becomes."""
        normed, _ = rmsnorm_residual(more, self._ones, self._eps, residual=x, new_residual=x)
        return normed
