"""Where the entries of a source's tensors lie in the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

import torch
from torch import Tensor

from foredraft.models.widen.widening import Widening


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a tensor.

    places: where each of the source's entries lies, int64 [source's size].
    owned: entries that are the source's or must be zero beside them, bool [target's size].
    """

    places: Tensor
    owned: Tensor

    @property
    def size(self) -> int:
        return len(self.owned)


class Rest(Enum):
    """What stands where the source has nothing."""

    ZERO = auto()
    NOISE = auto()  # rows that are nobody's are random, all else is zero
    SCALE = auto()  # as if the source had a 1 there


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of tensor: its axes, the field of `Scales` that holds for it, and its rest."""

    axes: tuple[str, ...]
    scale: str
    rest: Rest


_NORM = Part(("hidden",), "norm", Rest.SCALE)
_ROWS_OF_IDS = Part(("vocabulary", "hidden"), "one", Rest.ZERO)
OUTER_PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "model.embed_tokens.weight": _ROWS_OF_IDS,
        "model.norm.weight": _NORM,
        "lm_head.weight": _ROWS_OF_IDS,
    }
)
_LAYER_PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "input_layernorm.weight": _NORM,
        "self_attn.q_proj.weight": Part(("queries", "hidden"), "query", Rest.NOISE),
        "self_attn.k_proj.weight": Part(("keys", "hidden"), "key", Rest.NOISE),
        "self_attn.v_proj.weight": Part(("keys", "hidden"), "one", Rest.NOISE),
        "self_attn.q_proj.bias": Part(("queries",), "query", Rest.NOISE),
        "self_attn.k_proj.bias": Part(("keys",), "key", Rest.NOISE),
        "self_attn.v_proj.bias": Part(("keys",), "one", Rest.NOISE),
        "self_attn.q_norm.weight": Part(("head",), "query_norm", Rest.SCALE),
        "self_attn.k_norm.weight": Part(("head",), "key_norm", Rest.SCALE),
        "self_attn.o_proj.weight": Part(("hidden", "queries"), "one", Rest.ZERO),
        "post_attention_layernorm.weight": _NORM,
        "mlp.gate_proj.weight": Part(("intermediate", "hidden"), "one", Rest.NOISE),
        "mlp.up_proj.weight": Part(("intermediate", "hidden"), "one", Rest.NOISE),
        "mlp.down_proj.weight": Part(("hidden", "intermediate"), "one", Rest.ZERO),
    }
)


def layer_parts(widening: Widening) -> dict[str, Part]:
    """The tensors of a layer, by their names in it, as this family has them."""
    config, left_out = widening.source, set()
    if not config.qkv_bias:
        left_out |= {f"self_attn.{part}_proj.bias" for part in "qkv"}
    if not config.head_norms:
        left_out |= {f"self_attn.{part}_norm.weight" for part in "qk"}
    return {name: part for name, part in _LAYER_PARTS.items() if name not in left_out}


def axes(widening: Widening, device: torch.device) -> dict[str, Axis]:
    """Every axis that a `Part` names."""
    source, target = widening.source, widening.target
    heads = torch.arange(source.heads)
    of_group = heads // source.group * target.group + heads % source.group
    made = {
        "hidden": _first(source.hidden, target.hidden),
        "intermediate": _first(source.intermediate, target.intermediate),
        "vocabulary": _first(source.vocab_rows, target.vocab_rows),
        "head": _heads(widening, torch.tensor([0]), 1),
        "keys": _heads(widening, torch.arange(source.kv_heads), target.kv_heads),
        "queries": _heads(widening, of_group, target.heads),
    }
    return {name: Axis(a.places.to(device), a.owned.to(device)) for name, a in made.items()}


def _first(count: int, size: int) -> Axis:
    return Axis(torch.arange(count), torch.arange(size) < count)


def _heads(widening: Widening, chosen: Tensor, heads: int) -> Axis:
    """The source's heads are the ``chosen`` of ``heads``."""
    wide, narrow = widening.target.head_dim, widening.source.head_dim
    halves = torch.arange(2)[:, None] * (wide // 2)
    inside = (halves + torch.arange(narrow // 2) * widening.spread).flatten()
    owned = torch.zeros(heads, wide, dtype=torch.bool)
    owned[chosen] = True
    return Axis((chosen[:, None] * wide + inside).flatten(), owned.flatten())
