"""Noise by the kernel: the engine's, within the rounding of logarithms."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from foredraft.engine.noise import gumbel_of, noise_key
from kernels.cpu.add_noise import AddNoise


@pytest.mark.parametrize("columns", [5, 4096, 30_001])
def test_noise_is_that_of_the_engine(columns: int) -> None:
    """Rows without a heat stay as they are, and so does what is behind a row."""
    source = random.Random(columns)
    ids = torch.tensor(sorted(source.sample(range(2**20), columns)))
    draws = [(source.getrandbits(64), n, source.randrange(2**20)) for n in range(4)]
    heats = [0.5, 0.0, 1.0, 2.0]
    scores = torch.randn(4, columns + 3, generator=torch.Generator().manual_seed(0))
    expected = scores.double()
    for row, (draw, heat) in enumerate(zip(draws, heats, strict=True)):
        expected[row, :columns] += heat * gumbel_of(*draw, ids).double()
    keys = np.array([noise_key(*draw) for draw in draws])
    AddNoise(ids.numpy())(scores[:, :columns], keys, np.array(heats, dtype=np.float32))
    torch.testing.assert_close(scores.double(), expected, atol=2e-6, rtol=0)
