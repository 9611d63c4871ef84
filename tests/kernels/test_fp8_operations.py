"""A model in FP8 by its kernels, beside the same model by their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cosine_similarity

from bench.step.random_weights import RandomWeights, random_config
from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.operations import Matrix, Operations
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.runner import SequenceRows
from foredraft.models.widen.shape import Shape
from foredraft.wire.messages import ModelInfo

VOCAB = 40
SHAPE = Shape(layers=1, hidden=32, intermediate=64, heads=4, kv_heads=2, head_dim=16)
PROMPT = [5, 9, 3]


class Kernels(KernelOperations):
    """All kernels but one, which has tests of its own and is slow to interpret."""

    def quantize_weight(self, weight: torch.Tensor) -> Matrix:
        return ReferenceOperations().quantize_weight(weight)


def load(device: torch.device, operations: Operations) -> Fp8Runner:
    """Weights large enough to matter beside the residual stream; with head norms."""
    config = replace(random_config(SHAPE, context=100), vocab_rows=VOCAB, head_norms=True)
    made = RandomWeights(config, device)

    def read(name: str) -> torch.Tensor:
        return 8 * made(name) if name.endswith("proj.weight") else made(name)

    info = ModelInfo("tiny", "", VOCAB, config.context_length, (), "fp8")
    return Fp8Runner.build(read, config, info, device, operations, kv_memory_mib=1)


def steps_of(runner: Fp8Runner, prompt: list[int]) -> list[torch.Tensor]:
    """Logits of a tree behind the prompt, of its longest chain alone, and of it among others."""
    blocks, others = (runner.kv.allocate(2) for _ in range(2))
    fed = len(prompt)
    if fed:
        runner.prefill(blocks, prompt, 0)
    paths = [(fed,), (fed, fed + 1), (fed, fed + 2)]
    tree = SequenceRows(blocks, fed, [4, 11, 12], paths)
    found = [runner.forward([tree]).clone()]
    for context, token in ((fed, 4), (fed + 1, 12)):
        rows = [SequenceRows(blocks, context, [token], [(context,)])]
        found.append(runner.forward(rows).clone())
    other = SequenceRows(others, 0, [21], [(0,)])
    found.append(runner.forward([other, tree])[1:].clone())
    return found


@pytest.mark.parametrize(
    "prompt", [[], pytest.param(PROMPT, marks=pytest.mark.slow)], ids=["steps", "a chunk, too"]
)
def test_a_model_by_kernels_is_the_model_by_references(
    device: torch.device, prompt: list[int]
) -> None:
    tree, first, second, again = steps_of(load(device, Kernels()), prompt)
    if device.type == "cpu":  # a GPU draws other random weights
        expected = steps_of(load(device, ReferenceOperations()), prompt)
        for found, wanted in zip((tree, first, second), expected, strict=False):
            assert cosine_similarity(found, wanted).min() > 0.995
    assert tree.isfinite().all() and float(tree.std()) > 0.01
    assert torch.equal(torch.cat((first, second)), tree[[0, 2]])
    assert torch.equal(again, tree)


@pytest.mark.slow
def test_a_chunks_logits_are_those_of_the_references(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("a GPU draws other random weights")
    found, expected = (
        runner.prefill_scored(runner.kv.allocate(1), PROMPT, 0)
        for runner in (load(device, Kernels()), load(device, ReferenceOperations()))
    )
    assert found.shape == (len(PROMPT), VOCAB)
    assert cosine_similarity(found, expected).min() > 0.995
