"""A draft's pass by kernels beside the same pass in the library's operations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.reduced import reduced_twin
from support.tiny_models import make_tiny_model

from draft_service.engine.draft_engine import Extension, Guesses
from draft_service.engine.lean import LeanEngine
from draft_service.identity import read_target
from foredraft.config import EngineConfig
from foredraft.engine.sampling import SampledRow
from foredraft.params import SamplingParams

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "hidden": 96, "heads": 6, "kv_heads": 2},
    "qwen2": {"family": "qwen2", "hidden": 56, "heads": 7, "kv_heads": 1, "tie": False},
    "qwen3": {"family": "qwen3", "hidden": 64, "heads": 8, "kv_heads": 4, "head_dim": 24},
}
IDS = list(range(2, 128, 2))
LENGTH = 37


def load(directory: Path, draft: Path, device: torch.device, kernels: bool) -> LeanEngine:
    config = EngineConfig(draft, dtype="bfloat16", kv_memory_mib=2, device=device.type)
    return LeanEngine.load(config, read_target(directory), static=True, kernels=kernels)


def look(temperature: float, **params: Any) -> SampledRow:
    made = SamplingParams(temperature=temperature, seed=2**40 + 7, **params)
    return SampledRow(made, 0, LENGTH + 1, LENGTH, list(range(3, 40)))


def extend(engine: LeanEngine) -> Guesses:
    """A chain of one sequence and the root of another; all kinds of looks."""
    tokens = random.Random(0).choices(range(3, 128), k=LENGTH)
    own, other = (engine.pool.allocate_run(6) for _ in range(2))
    assert own is not None and other is not None
    engine.prefill(own, tokens, 0)
    engine.prefill(other, tokens[9:], 0)
    looks = [look(0.8), look(0.0, repetition_penalty=1.3), None]
    batch = [
        Extension(own, LENGTH, [7], [5, 6], [[38], [38, 39]], looks),
        Extension(other, LENGTH - 9, [11], [], [], [look(1.0, top_k=9)]),
    ]
    return engine.extend(batch)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_kernels_compute_what_the_library_does(
    device: torch.device, tmp_path: Path, shape: dict[str, Any]
):
    """Logits, entries and guesses, over reduced ids."""
    directory = make_tiny_model(
        tmp_path / "target", layers=1, context=128, norm_spread=0.3, **shape
    )
    draft = reduced_twin(directory, tmp_path / "draft", IDS)
    engines = [load(directory, draft, device, kernels) for kernels in (True, False)]
    ours, library = map(extend, engines)
    for found, exact in zip(*map(inside, engines), strict=True):
        assert (found - exact).norm() < 0.02 * exact.norm() and exact.norm() > 0
    torch.testing.assert_close(
        torch.tensor(ours.chances), torch.tensor(library.chances), atol=0.02, rtol=0.1
    )
    assert all(token in IDS for row in ours.tokens for token in row)
    same = [a[0] == b[0] for a, b in zip(ours.tokens, library.tokens, strict=True)]
    assert sum(same) >= 3 and len(same) == 4


def inside(engine: LeanEngine) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the only pass, and all entries."""
    assert engine._static is not None
    [made] = engine._static._passes.values()
    assert made.logits.shape == (4, len(IDS))
    return made.logits.float(), engine._memory.entries.float()
