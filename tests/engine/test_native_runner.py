"""The pass of kernels for x86-64: equal to transformers, and the same bits in any company."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import make_tiny_model
from transformers import AutoModelForCausalLM

from foredraft.config import EngineConfig
from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.kv import BlockPool
from foredraft.engine.native.blocks import Blocks
from foredraft.engine.runner import load_runner
from kernels.cpu import available

if not available():
    pytest.skip("needs Linux on x86-64 with AVX2", allow_module_level=True)

# Behind the look at the processor: elsewhere it cannot be imported.
from foredraft.engine.native.runner import NativeRunner

SHAPES: dict[str, dict[str, Any]] = {
    "llama-groups-of-3": {"family": "llama", "hidden": 96, "heads": 6, "kv_heads": 2},
    "qwen2-biases": {"family": "qwen2", "hidden": 64, "heads": 4, "kv_heads": 4, "tie": False},
    "qwen3-head-norms": {
        "family": "qwen3",
        "hidden": 64,
        "heads": 8,
        "kv_heads": 1,
        "head_dim": 24,
        "tie": False,
        "vocab": 131,
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_tiny_model(path, context=320, norm_spread=0.3, **SHAPES[request.param])


@pytest.fixture(scope="module")
def loaded(directory: Path) -> NativeRunner:
    runner = load_runner(EngineConfig(directory, dtype="int8", threads=2, kv_memory_mib=16))
    assert isinstance(runner, NativeRunner)
    return runner


@pytest.fixture
def runner(loaded: NativeRunner) -> Iterator[NativeRunner]:
    """All blocks are free again; the memory holds what earlier tests left."""
    yield loaded
    loaded._memory.pool = BlockPool(loaded.kv.total_blocks)


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 128), k=count)


def prefilled(runner: NativeRunner, prompt: Sequence[int]) -> list[int]:
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(prompt) + 64))
    for start in range(0, len(prompt), runner.chunk):
        runner.prefill(blocks, prompt[start : start + runner.chunk], start)
    return blocks


def chain(blocks: list[int], context: int, new: Sequence[int]) -> SequenceRows:
    return SequenceRows(
        blocks, context, new, [tuple(range(context, context + row + 1)) for row in range(len(new))]
    )


def test_logits_are_those_of_the_blocks_numbers(directory: Path, runner: NativeRunner) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.copy_(Blocks.nearest(weight).floats())
    for length in (2, 16, 17, 64, 65, 200):
        text = tokens(length)
        blocks = prefilled(runner, text[:-1])
        found = runner.forward([chain(blocks, length - 1, text[-1:])])[0]
        expected = model(torch.tensor([text])).logits[0, -1, : len(found)]
        assert (found - expected).abs().max() <= 3e-4 * expected.abs().max(), length


def test_a_row_has_the_same_bits_in_a_chain_a_tree_and_a_batch(runner: NativeRunner) -> None:
    prompt, new = tokens(70), tokens(6, seed=1)
    blocks = prefilled(runner, prompt)
    alone = [runner.forward([chain(blocks, 70 + i, [t])])[0] for i, t in enumerate(new)]
    together = runner.forward([chain(blocks, 70, new)])
    assert torch.equal(together, torch.stack(alone))

    # Slots of the path 70, 73, 71, 75 among wrong siblings; neighbours before and behind.
    tree = SequenceRows(
        blocks,
        70,
        [new[0], new[2], 5, new[1], 6, new[3]],
        [(70,), (70, 73, 71), (70, 72), (70, 73), (70, 74), (70, 73, 71, 75)],
    )
    others = [chain(prefilled(runner, tokens(n, n)), n, tokens(3, n)) for n in (1, 63, 129)]
    rows = runner.forward([others[0], tree, *others[1:]])[3:9]
    assert torch.equal(rows[[0, 3, 1, 5]], torch.stack(alone[:4]))

    runner.move(blocks, [(73, 71), (71, 72), (75, 73)])
    assert torch.equal(runner.forward([chain(blocks, 74, new[4:5])])[0], alone[4])


def test_prompt_rows_have_the_bits_of_decoded_ones(runner: NativeRunner) -> None:
    prompt = tokens(66)
    blocks = prefilled(runner, prompt)
    following = runner.forward([chain(blocks, 66, [9])])[0]
    start = runner.kv.allocate(runner.kv.blocks_for(100))
    for place, token in enumerate(prompt):
        runner.forward([chain(start, place, [token])])
    assert torch.equal(runner.forward([chain(start, 66, [9])])[0], following)


def test_tokens_may_be_numbers_of_any_width(runner: NativeRunner) -> None:
    rows = []
    for width in (np.int64, np.int32):
        blocks = runner.kv.allocate(2)
        rows.append(runner.prefill_scored(blocks, list(np.array(tokens(9), dtype=width)), 0))
    assert torch.equal(*rows)
