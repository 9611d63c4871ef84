"""A target in FP8 by its torch references: the model it was made of, and bits that stay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import make_tiny_model
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import AutoModelForCausalLM

from foredraft.config import FP8_DEPTH, EngineConfig
from foredraft.engine.fp8.inputs import DEEPEST
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.kv import BLOCK
from foredraft.engine.model_config import UnsupportedModel, read_model_config
from foredraft.engine.runner import Runner, SequenceRows, load_runner
from foredraft.engine.weights import opened_weights
from foredraft.models.widen.shape import Shape
from foredraft.models.widen.wide_weights import WideWeights
from foredraft.models.widen.widening import plan_widening
from kernels import kv_layout

CONTEXT, VOCAB = 256, 128
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": STRETCHED},
    "qwen2": {"heads": 7, "kv_heads": 1, "hidden": 112},
    "qwen3": {"heads": 4, "kv_heads": 4, "head_dim": 32, "tie": False},
}


def make(path: Path, family: str, **more: Any) -> Path:
    """Weights so small that no softmax is a choice of one, which rounding could change."""
    options = {"context": CONTEXT, "vocab": VOCAB, "norm_spread": 0.2, "spread": 0.1}
    return make_tiny_model(path, family, **{**options, **FAMILIES[family], **more})


def load(directory: Path) -> Runner:
    return load_runner(EngineConfig(directory, dtype="fp8", device="cpu", kv_memory_mib=2))


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def runner(directory: Path) -> Runner:
    return load(directory)


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=count)


def prefilled(runner: Runner, tokens: Sequence[int]) -> list[int]:
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(tokens) + 64))
    for start in range(0, len(tokens), runner.chunk):
        runner.prefill(blocks, tokens[start : start + runner.chunk], start)
    return blocks


def rows_of(
    blocks: list[int], context: int, tokens: Sequence[int], parents: Sequence[int]
) -> SequenceRows:
    """Rows of a tree: ``parents`` are rows, of the root -1."""
    paths: list[tuple[int, ...]] = []
    for row, parent in enumerate(parents):
        paths.append((*(paths[parent] if parent >= 0 else ()), context + row))
    return SequenceRows(blocks, context, tokens, paths)


def one_by_one(runner: Runner, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    blocks = prefilled(runner, prompt)
    rows = [
        runner.forward([rows_of(blocks, len(prompt) + index, [token], [-1])]).clone()
        for index, token in enumerate(tokens)
    ]
    runner.kv.free(blocks)
    return torch.cat(rows)


def test_logits_are_close_to_those_of_the_weights_as_they_were(
    directory: Path, runner: Runner
) -> None:
    """Biases, head norms and stretched rotation included, in chunks of prompt and in steps."""
    tokens = tokens_of(140)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    blocks = runner.kv.allocate(runner.kv.blocks_for(200))
    scored = [
        runner.prefill_scored(blocks, tokens[start : min(start + runner.chunk, 130)], start)
        for start in range(0, 130, runner.chunk)
    ]
    stepped = runner.forward([rows_of(blocks, 130, tokens[130:], range(-1, 9))])
    runner.kv.free(blocks)
    likeness = cosine_similarity(torch.cat([*scored, stepped]), expected)
    assert likeness.min() > 0.96
    assert likeness.mean() > 0.985


@pytest.mark.parametrize("directory", ["llama"], indirect=True)
def test_a_prompt_is_the_same_in_launches_of_any_size(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """180 tokens: 128, then 64 of which 12 are padding; or chunk by chunk."""
    tokens = tokens_of(180)
    found = []
    for launches in ((64,), (64, 128)):
        monkeypatch.setattr("foredraft.engine.fp8.runner._CPU_LAUNCHES", launches)
        runner = load(directory)
        assert (runner.chunk, runner.longest) == (64, launches[-1])
        blocks = runner.kv.allocate(runner.kv.blocks_for(190))
        step = runner.chunk if len(launches) == 1 else len(tokens)
        for start in range(0, len(tokens), step):
            runner.prefill(blocks, tokens[start : start + step], start)
        found.append(runner.forward([rows_of(blocks, 180, [5, 6], [-1, 0])]))
    assert torch.equal(*found)


def test_rows_have_the_same_bits_in_any_company(runner: Runner) -> None:
    """A chain, and the same chain as a branch of a tree, among others that reach over a tile."""
    prompt, other = tokens_of(60), tokens_of(125, seed=1)
    chain = tokens_of(7, seed=2)
    alone = one_by_one(runner, prompt, chain)
    mine, theirs = prefilled(runner, prompt), prefilled(runner, other)
    chained = runner.forward([rows_of(mine, 60, chain, range(-1, 6))])
    assert torch.equal(chained, alone)
    tokens = [chain[0], 9, chain[1], 10, *chain[2:], 11]
    parents = [-1, 0, 0, 1, 2, 4, 5, 6, 7, 2]
    for count in (1, 5, 8):
        neighbour = rows_of(theirs, 125, tokens_of(count), range(-1, count - 1))
        batch = [neighbour, rows_of(mine, 60, tokens, parents), neighbour]
        found = runner.forward(batch[:2])[count:]
        assert torch.equal(found[[0, 2, 4, 5, 6, 7, 8]], alone)
    runner.kv.free([*mine, *theirs])


def test_a_path_that_is_moved_goes_on_as_plain_decoding(runner: Runner) -> None:
    prompt, chain = tokens_of(30), tokens_of(4, seed=3)
    alone = one_by_one(runner, prompt, chain)
    blocks = prefilled(runner, prompt)
    runner.forward([rows_of(blocks, 30, [chain[0], 7, chain[1], 8, chain[2]], [-1, 0, 0, 1, 2])])
    runner.move(blocks, [(32, 31), (34, 32)])
    assert torch.equal(runner.forward([rows_of(blocks, 33, chain[3:], [-1])])[0], alone[3])
    runner.kv.free(blocks)


def test_a_block_that_is_scrubbed_is_zero(runner: Runner) -> None:
    blocks = prefilled(runner, tokens_of(40))
    assert isinstance(runner, Fp8Runner)
    codes = runner._memory.memory.codes.view(torch.uint8)
    exponents = runner._memory.memory.exponents
    assert codes[:, :, :, blocks[:2]].any() and exponents[:, :, :, blocks[:2]].any()
    kept = codes[:, :, :, blocks[2]].clone()
    runner.scrub(blocks[:2])
    assert not codes[:, :, :, blocks[:2]].any() and not exponents[:, :, :, blocks[:2]].any()
    assert torch.equal(codes[:, :, :, blocks[2]], kept)
    assert not codes[:, :, :, 0].any()
    runner.kv.free(blocks)


def test_a_widened_model_needs_no_files(tmp_path: Path) -> None:
    """The source's function, layer by layer from its tensors; its rounding is another one."""
    source = make(tmp_path / "source", "llama")
    config = read_model_config(source)
    widening = plan_widening(config, Shape(layers=3, hidden=128, heads=8, kv_heads=4))
    narrow = load(source)
    with opened_weights(source, config) as read:
        wide = Fp8Runner.build(
            WideWeights(read, widening),
            widening.target,
            replace(narrow.info, context_length=CONTEXT),
            torch.device("cpu"),
            ReferenceOperations(),
            kv_memory_mib=2,
        )
    prompt, chain = tokens_of(20), tokens_of(6, seed=4)
    pairs = (one_by_one(one, prompt, chain) for one in (narrow, wide))
    assert cosine_similarity(*pairs).min() > 0.98


def test_fp8_is_never_chosen_by_itself(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_runner(EngineConfig(directory, device="cpu", kv_memory_mib=1)).info.dtype != "fp8"
    assert not caplog.records
    assert load(directory).info.dtype == "fp8"
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "8.9" in said and "torch references" in said


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"heads": 2, "kv_heads": 2, "hidden": 48, "head_dim": 24}, "head_dim must be a multiple"),
        ({"heads": 17, "kv_heads": 1, "hidden": 272}, "at most 16 query heads"),
    ],
    ids=["head_dim", "group"],
)
def test_heads_that_no_kernel_takes_are_refused(
    tmp_path: Path, more: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        load(make(tmp_path / "model", "llama", **more))


def test_a_weight_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "model", "llama")
    config = read_model_config(source)
    name = "model.layers.1.mlp.down_proj.weight"

    def read(wanted: str) -> Tensor:
        tensor = files(wanted)
        return tensor.index_fill(0, torch.tensor([3]), torch.nan) if wanted == name else tensor

    device, info = torch.device("cpu"), load(source).info
    with opened_weights(source, config) as files, pytest.raises(UnsupportedModel, match=name):
        Fp8Runner.build(read, config, info, device, ReferenceOperations(), kv_memory_mib=1)


def test_a_path_too_deep_for_attention_is_refused(runner: Runner) -> None:
    blocks = runner.kv.allocate(6)
    chain = rows_of(blocks, 5, tokens_of(DEEPEST + 2), range(-1, DEEPEST + 1))
    with pytest.raises(ValueError, match="a path must have at most"):
        runner.forward([chain])
    runner.kv.free(blocks)


def test_numbers_that_two_packages_know_are_the_same() -> None:
    assert (BLOCK, FP8_DEPTH) == (kv_layout.BLOCK, DEEPEST)
