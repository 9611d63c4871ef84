"""A smaller model out of a target's own layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from foredraft.params import InvalidField

LAYERS = "--layers"


def choose_layers(chosen: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    """``chosen``, or the first two and the last two of ``count`` layers.

    Raises:
        InvalidField: there is no such layer, or they do not ascend.
    """
    if chosen is None:
        return tuple(sorted({*range(min(2, count)), *range(max(0, count - 2), count)}))
    if (
        not chosen
        or sorted(set(chosen)) != list(chosen)
        or not 0 <= chosen[0] <= chosen[-1] < count
    ):
        allowed = f"ascending numbers of the target's layers, 0 to {count - 1}, with commas"
        raise InvalidField(LAYERS, f"{allowed}, not {','.join(map(str, chosen))}")
    return chosen


def prune(target: Any, layers: tuple[int, ...]) -> Any:
    """A transformers model with copies of those layers of ``target``, in float32, on its device.

    Embedding and head are frozen: a draft speaks of the target's own tokens, and most of its
    weights are there. The layers and the last norm are free.
    """
    config = copy.deepcopy(target.config)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = [kinds[number] for number in layers]
    config.num_hidden_layers = len(layers)
    weights = {
        name: weight
        for name, weight in (_renamed(item, layers) for item in target.state_dict().items())
        if name
    }
    make: Any = AutoModelForCausalLM.from_config
    draft = make(config).to(torch.float32)
    draft.load_state_dict(weights)
    draft.requires_grad_(True)
    draft.model.embed_tokens.requires_grad_(False)
    draft.lm_head.requires_grad_(False)
    return draft.to(target.device).eval()  # what the library drops out in training would be lost


def _renamed(item: tuple[str, Any], layers: tuple[int, ...]) -> tuple[str, Any]:
    """A weight under its name in the draft, an empty one if it has no place there."""
    name, weight = item
    before, found, after = name.partition("model.layers.")
    if not found:
        return name, weight
    number, _, rest = after.partition(".")
    if int(number) not in layers:
        return "", weight
    return f"{before}{found}{layers.index(int(number))}.{rest}", weight
