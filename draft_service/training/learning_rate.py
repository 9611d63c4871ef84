"""How fast a draft learns at each moment of its training."""

from __future__ import annotations

import math

_WARM_UP = 0.02  # of the whole training


def learning_rate(highest: float, progress: float) -> float:
    """A short straight rise, then a cosine down to 0; ``progress`` goes from 0 to 1."""
    if progress < _WARM_UP:
        return highest * progress / _WARM_UP
    done = min(1.0, (progress - _WARM_UP) / (1.0 - _WARM_UP))
    return highest * 0.5 * (1.0 + math.cos(math.pi * done))
