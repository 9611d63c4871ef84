"""A cell of the benchmark of whole steps, at a tiny shape: every step verifies what it says."""

from __future__ import annotations

import pytest
import torch

from bench.step.bf16_operations import Bf16Operations
from bench.step.cell import Cell, StepBench
from bench.step.random_weights import RandomWeights, random_config
from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.weights import quantise
from foredraft.models.widen.shape import Shape


@pytest.mark.parametrize(
    ("made", "nodes"),
    [
        pytest.param(KernelOperations, 5, id="fp8"),
        pytest.param(KernelOperations, 0, id="fp8, plain"),
        pytest.param(Bf16Operations, 5, id="bf16", marks=pytest.mark.slow),
    ],
)
def test_every_step_verifies_all_guesses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, made: type[KernelOperations], nodes: int
) -> None:
    monkeypatch.setattr("bench.step.random_weights._VOCABULARY", 40)
    shape = Shape(layers=1, hidden=32, intermediate=64, heads=2, kv_heads=1, head_dim=16)
    config, cell = random_config(shape, context=40), Cell(2, nodes, 40)
    slow = device.type == "cpu" and made is KernelOperations
    operations = ReferenceOperations() if slow else made()
    weights = quantise(RandomWeights(config, device), config, 40, device, operations)
    bench = StepBench(weights, cell, operations)
    for _ in range(2):
        found = bench.step.commits(bench.launch())
        assert found["verified"].tolist() == cell.shares
        assert found["base"].tolist() == [41, 41]
        assert (found["count"] >= 1).all() and (found["finish"] == 0).all()
