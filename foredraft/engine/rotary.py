"""Rotary position embedding (Su et al. 2021), with Llama 3's frequency scaling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig, RopeScaling


class Rotary:
    """Tables of cos and sin for every position of the context, float32."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequency = 1.0 / (config.rope_theta**exponent)
        if config.rope_scaling is not None:
            frequency = _stretch(frequency, config.rope_scaling)
        angle = torch.arange(config.context_length, dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        self._cos = torch.cat((cos, cos), dim=-1).to(device)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin at ``positions`` [rows]: [rows, 1, head_dim] each."""
        cos = self._cos.index_select(0, positions)[:, None].to(dtype)
        sin = self._sin.index_select(0, positions)[:, None].to(dtype)
        return cos, sin


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the pairs (i, i + head_dim/2) of x [rows, heads, head_dim] by their angles, in place."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    x.mul_(cos).add_(swapped.mul_(sin))


def _stretch(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow down long waves, keep short ones, blend between (Llama 3.1 model card)."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_context / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequency / scaling.factor + blend * frequency
