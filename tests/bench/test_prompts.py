"""The benchmark of long prompts, at a tiny shape: it hears every token of every sequence."""

from __future__ import annotations

import pytest
import torch

from bench.prompts.served import ServedPrompts
from bench.step.random_weights import RandomWeights, random_config
from foredraft.config import FP8
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.models.widen.shape import Shape
from foredraft.wire.messages import ModelInfo

TINY = Shape(layers=1, hidden=32, intermediate=64, heads=2, kv_heads=1, head_dim=16)


def test_all_tokens_of_all_sequences_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.step.random_weights._VOCABULARY", 40)
    config, device = random_config(TINY, context=100), torch.device("cpu")
    info = ModelInfo("shape", "", 40, config.context_length, (), FP8)
    weights, operations = RandomWeights(config, device), ReferenceOperations()
    runner = Fp8Runner.build(weights, config, info, device, operations, 1)
    served = ServedPrompts(runner, 2)
    for prompt in (runner.chunk + 2, 3):
        heard = served.start(2, prompt, 4)
        served.wait(heard, first=True)
        served.wait(heard)
        found = heard.report()
        assert found["tokens"] == [4, 4]
        assert 0 < found["first_token_ms"][0] <= found["first_token_ms"][1]
        assert found["longest_gap_ms"] >= found["step_ms"] > 0
    too_long = served.start(1, config.context_length, 4)
    with pytest.raises(RuntimeError, match="context"):
        served.wait(too_long)
    served.stop()
