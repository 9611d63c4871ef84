"""The forward pass that answering and training share, over the weights of a transformers model.

Written out, because the answers' steps have to be captured in a CUDA graph, with keys and values
where they stay, and because it takes the same names from every version of the library: only its
modules are used, none of its passes. What it computes is tested against the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from foredraft.engine.model_config import ModelConfig

# From the number of a layer and its queries [batch, rows, kv_heads, group, head_dim], keys and
# values [batch, rows, kv_heads, head_dim] to what the rows attended to, [batch, rows, heads * dim].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Turns:
    """Rotary embedding of every position that is used: float32 [positions, head_dim / 2] each."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, model: Any, positions: int) -> Turns:
        """Those of a transformers model, on its device; its scaling included."""
        device = model.model.embed_tokens.weight.device
        numbers = torch.arange(positions, device=device)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, device=device), numbers)
        half = cos.shape[-1] // 2  # the library repeats them for the second half
        return cls(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())


@dataclass(frozen=True, slots=True)
class Layer:
    """Projections that read the same input are stacked: one product in the place of several."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Decoder:
    """Weights, laid out; ``shape`` gives widths and heads, its number of layers is not used."""

    shape: ModelConfig
    turns: Turns
    embedding: Tensor
    layers: tuple[Layer, ...]
    last_norm: Tensor

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden rows behind the last norm, [batch, rows, hidden], of ids [batch, rows]."""
        hidden = functional.embedding(tokens, self.embedding)
        cos, sin = (table[positions][:, :, None] for table in (self.turns.cos, self.turns.sin))
        for number, layer in enumerate(self.layers):
            q, k, v = self._project(layer, hidden, cos, sin)
            hidden = hidden + functional.linear(attend(number, q, k, v), layer.out)
            gate, up = functional.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(
                2, dim=-1
            )
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        return self._norm(hidden, self.last_norm)

    def _project(
        self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        normed = self._norm(hidden, layer.attention_norm)
        stacked = functional.linear(normed, layer.qkv, layer.qkv_bias)
        stacked = stacked.unflatten(-1, (-1, shape.head_dim))  # [batch, rows, all heads, head_dim]
        qk, v = stacked.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=2)
        if layer.head_norms is not None:
            parts = qk.split((shape.heads, shape.kv_heads), dim=2)
            qk = torch.cat(
                [self._norm(part, w) for part, w in zip(parts, layer.head_norms, strict=True)],
                dim=2,
            )
        turn: Any = Turn.apply
        q, k = turn(qk, cos, sin).to(v.dtype).split((shape.heads, shape.kv_heads), dim=2)
        return q.unflatten(2, (shape.kv_heads, shape.group)), k, v

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight.to(x.dtype), self.shape.rms_eps)


class Turn(torch.autograd.Function):
    """Rotates pairs (i, i + head_dim / 2) of x [..., head_dim] by angles given as cos and sin.

    In float32, whatever the type of x, in four passes over it: as one formula of the library's
    operations it would be a third of all memory traffic of a layer. Backwards it rotates back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(outer[0], cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    first, second = x.chunk(2, dim=-1)
    to_first, to_second = found.chunk(2, dim=-1)
    torch.addcmul(first * cos, second, sin, value=-1.0, out=to_first)
    torch.addcmul(second * cos, first, sin, out=to_second)
    return found


def lay_out(model: Any, shape: ModelConfig, turns: Turns) -> Decoder:
    """The weights of a transformers model as they are now; gradients flow back to its own."""
    inner = model.model
    return Decoder(
        shape=shape,
        turns=turns,
        embedding=inner.embed_tokens.weight,
        layers=tuple(_layer(layer, shape) for layer in inner.layers),
        last_norm=inner.norm.weight,
    )


def _layer(layer: Any, shape: ModelConfig) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = (attention.q_norm.weight, attention.k_norm.weight) if shape.head_norms else None
    return Layer(
        attention_norm=layer.input_layernorm.weight,
        qkv=torch.cat([part.weight for part in parts]),
        qkv_bias=torch.cat([part.bias for part in parts]) if shape.qkv_bias else None,
        head_norms=norms,
        out=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention in which the query heads of a group are rows of their KV head.

    So keys and values are read as they lie, without a copy for every query head.

    Args:
        q: [batch, rows, kv_heads, group, head_dim].
        k, v: [batch, kv_heads, slots, head_dim].
        mask: added to the scores, as `group_mask` makes it.

    Returns:
        [batch, rows, heads * head_dim].
    """
    batch, rows, kv_heads, group, head_dim = q.shape
    grouped = q.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * rows, head_dim)
    found: Tensor = functional.scaled_dot_product_attention(grouped, k, v, attn_mask=mask)
    by_row: Tensor = found.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4)
    return by_row.reshape(batch, rows, kv_heads * group * head_dim)


def group_mask(visible: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """From what rows see, [batch, rows, slots], to a mask [batch, 1, group * rows, slots]."""
    batch, rows, slots = visible.shape
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask = mask.masked_fill_(~visible, float("-inf"))
    return mask[:, None, None].expand(batch, 1, group, rows, slots).flatten(2, 3)


def attend_within(mask: Tensor) -> Attend:
    """Attention of rows to each other, without a memory of earlier ones."""

    def attend_rows(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k.transpose(1, 2), v.transpose(1, 2), mask)

    return attend_rows


def attend_in_runs(runs: Tensor, longest: int) -> Attend:
    """Causal attention within runs of rows, by flash attention: a GPU, and 16 bits a number.

    Args:
        runs: int32 [runs + 1], where each run begins in the flattened rows, and their end.
        longest: most rows of a run.
    """

    def attend_rows(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, rows, _, group, _ = q.shape
        queries = q.flatten(2, 3).flatten(0, 1)
        keys, values = (kv.flatten(0, 1).repeat_interleave(group, dim=1) for kv in (k, v))
        found = varlen_attn(
            queries, keys, values, runs, runs, longest, longest, window_size=(-1, 0)
        )
        assert isinstance(found, Tensor)
        return found.view(batch, rows, -1)

    return attend_rows
