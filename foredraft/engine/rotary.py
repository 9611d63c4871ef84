"""Rotary position embedding (Su et al. 2021), with Llama 3's frequency scaling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig, RopeScaling


class Rotary:
    """A table of e^(i angle) for every position of the context, complex64."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequency = 1.0 / (config.rope_theta**exponent)
        if config.rope_scaling is not None:
            frequency = _stretch(frequency, config.rope_scaling)
        angle = torch.arange(config.context_length, dtype=torch.float32)[:, None] * frequency
        self._turns = torch.polar(torch.ones_like(angle), angle).to(device)

    @property
    def table(self) -> Tensor:
        """Cosine and sine of every angle: float32 [context, head_dim / 2, 2]."""
        return torch.view_as_real(self._turns)

    def at(self, positions: Tensor) -> Tensor:
        """Turns at ``positions`` [rows]: [rows, 1, head_dim / 2]."""
        return self._turns.index_select(0, positions)[:, None]


def rotate_(x: Tensor, turns: Tensor) -> None:
    """Turn the pairs (2i, 2i + 1) of x [rows, heads, head_dim] by their angles, in place."""
    whole = x.float()
    torch.view_as_complex(whole.view(*x.shape[:-1], -1, 2)).mul_(turns)
    if whole is not x:
        x.copy_(whole)


def pair_up(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder what belongs to query or key heads: the first dimension, heads * head_dim.

    Checkpoints hold a pair half a head apart, (i, i + head_dim / 2). Side by side it is one complex
    number, and a rotation one product. Scores are sums over pairs, so their order is free.
    """
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _stretch(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow down long waves, keep short ones, blend between (Llama 3.1 model card)."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_context / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequency / scaling.factor + blend * frequency
