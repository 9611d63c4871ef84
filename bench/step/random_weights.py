"""A target of any shape whose weights mean nothing: it costs what a real one does."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig
from foredraft.engine.weights import expected_shapes
from foredraft.models.widen.shape import SIZES, Shape
from foredraft.params import InvalidField

_VOCABULARY = 128_256  # Llama 3's
ROOM = 128  # positions behind the longest context
_SPREAD = 0.02


class RandomWeights:
    """Gives any tensor of the model, as a reader of files would: norms are 1, all else random."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._shapes = dict(expected_shapes(config))
        self._device = device
        self._random = torch.Generator(device).manual_seed(0)

    def __call__(self, name: str) -> Tensor:
        """bfloat16. Raises KeyError: the model has no such tensor."""
        made = torch.ones(self._shapes[name], dtype=torch.bfloat16, device=self._device)
        if made.dim() == 2:
            made.normal_(0.0, _SPREAD, generator=self._random)
        return made


def random_config(shape: Shape, context: int) -> ModelConfig:
    """A Llama of this shape with room for ``context`` tokens and a step.

    Raises:
        InvalidField: a size is missing, or sizes do not fit each other.
    """
    sizes = {name: getattr(shape, name) for name in SIZES}
    missing = [name for name, size in sizes.items() if size is None]
    if missing:
        raise InvalidField("--shape", f"complete without --source: {', '.join(missing)} lack")
    if sizes["heads"] % sizes["kv_heads"]:
        raise InvalidField("--shape", "one whose heads are a multiple of its kv_heads")
    return ModelConfig(
        **sizes,
        vocab_rows=_VOCABULARY,
        context_length=context + ROOM,
        sliding_window=None,
        rms_eps=1e-5,
        rope_theta=500_000.0,
        rope_scaling=None,
        tied=False,
        qkv_bias=False,
        head_norms=False,
        eos_token_ids=(),
    )
