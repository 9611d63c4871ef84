"""The forward pass: equal to transformers, and the same bits for a row in any company."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import make_tiny_llama, make_tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from foredraft.config import EngineConfig
from foredraft.engine.attention_plan import Summation
from foredraft.engine.kv import BlockPool
from foredraft.engine.runner import ModelRunner, SequenceRows

CONTEXT = 320
# Every family; heads of several widths, groups of several sizes; files in parts and in bfloat16.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-groups-of-3": {"family": "llama", "hidden": 96, "heads": 6, "kv_heads": 2},
    "llama-no-groups": {"family": "llama", "hidden": 64, "heads": 4, "kv_heads": 4, "tie": False},
    "llama-one-kv-head": {"family": "llama", "hidden": 60, "heads": 5, "kv_heads": 1},
    "mistral-groups-of-4": {
        "family": "mistral",
        "hidden": 48,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 16,
        "tie": False,
        "sliding_window": None,
        "shard": "40KB",
    },
    "qwen2-groups-of-7": {
        "family": "qwen2",
        "hidden": 112,
        "heads": 14,
        "kv_heads": 2,
        "shard": "60KB",
        "dtype": torch.bfloat16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    "qwen3-groups-of-8": {
        "family": "qwen3",
        "hidden": 64,
        "heads": 8,
        "kv_heads": 1,
        "head_dim": 24,
        "tie": False,
        "dtype": torch.bfloat16,
        "shard": "40KB",
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_tiny_model(path, context=CONTEXT, norm_spread=0.3, **SHAPES[request.param])


@pytest.fixture(scope="module", params=["float32", pytest.param("auto", marks=pytest.mark.slow)])
def loaded(request: pytest.FixtureRequest, directory: Path) -> ModelRunner:
    return load(directory, request.param)


@pytest.fixture
def runner(loaded: ModelRunner) -> Iterator[ModelRunner]:
    """All blocks are free again; the memory holds what earlier tests left."""
    tiles = loaded._tiles
    yield loaded
    loaded._tiles = tiles
    loaded._memory.pool = BlockPool(loaded.kv.total_blocks)


def load(directory: Path, dtype: str) -> ModelRunner:
    return ModelRunner.load(EngineConfig(directory, dtype=dtype, threads=2, kv_memory_mib=16))


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 128), k=count)


def prefilled(runner: ModelRunner, tokens: Sequence[int], room: int = 64) -> list[int]:
    """Blocks that hold the KV of ``tokens``."""
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(tokens) + room))
    for start in range(0, len(tokens), runner.chunk):
        runner.prefill(blocks, tokens[start : start + runner.chunk], start)
    return blocks


def chain(blocks: list[int], context: int, tokens: Sequence[int]) -> SequenceRows:
    paths = [tuple(range(context, context + row + 1)) for row in range(len(tokens))]
    return SequenceRows(blocks, context, tokens, paths)


def one_by_one(runner: ModelRunner, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Logits after each of ``tokens``, fed alone, one step each: plain decoding."""
    blocks = prefilled(runner, prompt)
    rows = [
        runner.forward([chain(blocks, len(prompt) + index, [token])])
        for index, token in enumerate(tokens)
    ]
    runner.kv.free(blocks)
    return torch.cat(rows)


def test_logits_and_greedy_ids_equal_transformers(directory: Path) -> None:
    runner = load(directory, "float32")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for length in (1, 15, 16, 17, 63, 64, 65, 200):
        tokens = random_tokens(length + 1)
        blocks, ours = prefilled(runner, tokens[:-1]), []
        for _ in range(9):
            logits = runner.forward([chain(blocks, len(tokens) - 1, tokens[-1:])])[0]
            tokens.append(int(logits.argmax()))
            ours.append(logits.cpu())
        with torch.inference_mode():
            expected = model(torch.tensor([tokens[:-1]])).logits[0, length:]
        torch.testing.assert_close(torch.stack(ours), expected, atol=1e-4, rtol=1e-4)
        assert tokens[length + 1 :] == expected.argmax(-1).tolist()


def test_chains_have_the_bits_of_plain_decoding(runner: ModelRunner) -> None:
    for context in (1, 15, 60, 64, 127, 190):
        prompt, tokens = random_tokens(context), random_tokens(20, seed=1)
        plain = one_by_one(runner, prompt, tokens)
        blocks = prefilled(runner, prompt)
        for width in (2, 3, 5, 9, 20):
            together = runner.forward([chain(blocks, context, tokens[:width])])
            assert torch.equal(together, plain[:width]), (context, width)


def test_siblings_do_not_see_each_other(runner: ModelRunner) -> None:
    """Root -> {a, b}, a -> c, b -> d, in two orders of the siblings."""
    root, a, b, c, d = random_tokens(5, seed=2)
    for s in (14, 62, 130):
        prompt = random_tokens(s)
        blocks = prefilled(runner, prompt)
        paths = [(s,), (s, s + 1), (s, s + 2), (s, s + 1, s + 3), (s, s + 2, s + 4)]
        logits = runner.forward([SequenceRows(blocks, s, [root, a, b, c, d], paths)])
        assert torch.equal(logits[[0, 1, 3]], one_by_one(runner, prompt, [root, a, c]))
        assert torch.equal(logits[[0, 2, 4]], one_by_one(runner, prompt, [root, b, d]))
        swapped = runner.forward([SequenceRows(blocks, s, [root, b, a, d, c], paths)])
        assert torch.equal(swapped[[0, 2, 1, 4, 3]], logits)


def random_tree(context: int, rows: int, chance: random.Random) -> list[tuple[int, ...]]:
    """Paths of rows that mostly go on where the newest ones ended."""
    paths: list[tuple[int, ...]] = [(context,)]
    for row in range(1, rows):
        parent = chance.choice(paths[-3:]) if chance.random() < 0.7 else chance.choice(paths)
        paths.append((*parent, context + row))
    return paths


@pytest.mark.parametrize(
    ("serial", "contexts"), [(True, (3, 60, 122, 127, 128, 190)), (False, (60, 127, 190))]
)
def test_every_path_of_a_tree_has_the_bits_of_plain_decoding(
    runner: ModelRunner, serial: bool, contexts: tuple[int, ...]
) -> None:
    """Also across the places where spans of positions begin.

    Values are gathered where the library does not add serially; that must do anywhere.
    """
    if not serial:
        runner._tiles = replace(runner._tiles, summation=Summation(serial=False))
    for context in contexts:
        prompt, tokens = random_tokens(context), random_tokens(24, seed=context)
        chance = random.Random(context)
        paths = random_tree(context, len(tokens), chance)
        logits = runner.forward([SequenceRows(prefilled(runner, prompt), context, tokens, paths)])
        for path in {max(paths, key=len), chance.choice(paths)}:
            rows = [slot - context for slot in path]
            plain = one_by_one(runner, prompt, [tokens[row] for row in rows])
            assert torch.equal(logits[rows], plain), context


def test_rows_do_not_feel_their_neighbours(runner: ModelRunner) -> None:
    """Unequal lengths in one step, the end-of-turn id inside a prompt included."""
    prompts = [random_tokens(length, seed=length) for length in (3, 17, 64, 65, 150, 40)]
    prompts[1][5] = 2
    tails = [random_tokens(1 + index, seed=50 + index) for index in range(len(prompts))]
    alone = [one_by_one(runner, p, t) for p, t in zip(prompts, tails, strict=True)]
    batch = [
        chain(prefilled(runner, prompt), len(prompt), tail)
        for prompt, tail in zip(prompts, tails, strict=True)
    ]
    assert torch.equal(runner.forward(batch), torch.cat(alone))


def test_nodes_may_rest_on_nodes_of_earlier_passes(runner: ModelRunner) -> None:
    prompt, tokens = random_tokens(61), random_tokens(4, seed=3)
    plain = one_by_one(runner, prompt, tokens)
    blocks = prefilled(runner, prompt)
    runner.forward([chain(blocks, 61, tokens[:2])])
    rows = SequenceRows(blocks, 61, tokens[2:], [(61, 62, 70), (61, 62, 70, 66)])
    assert torch.equal(runner.forward([rows]), plain[2:])


def test_moved_path_continues_as_if_it_had_been_plain(runner: ModelRunner) -> None:
    """Accepted nodes move behind the committed part, rejected ones are overwritten."""
    prompt, tokens = random_tokens(30), random_tokens(3, seed=4)
    plain = one_by_one(runner, prompt, [*tokens, 9])
    blocks = prefilled(runner, prompt)
    rows = [tokens[0], 11, tokens[1], 12, tokens[2]]
    paths = [(30,), (30, 31), (30, 32), (30, 31, 33), (30, 32, 34)]
    runner.forward([SequenceRows(blocks, 30, rows, paths)])
    runner.move(blocks, [(30, 30), (32, 31), (34, 32)])
    assert torch.equal(runner.forward([chain(blocks, 33, [9])])[0], plain[3])


def test_other_blocks_stay_untouched(runner: ModelRunner) -> None:
    """Writes go to the mapped slots only."""
    prompt = random_tokens(31)
    before = runner.kv.allocate(1)
    blocks = prefilled(runner, prompt, room=17)
    after = runner.kv.allocate(1)
    memory = runner._memory
    neighbours = torch.from_numpy(memory.block_index(torch.tensor([*before, *after]).numpy()))
    zeros = torch.from_numpy(memory.block_index(torch.tensor([0]).numpy()))
    held = [layer[neighbours].clone() for layer in memory.block_rows]
    runner.forward([chain(blocks, 31, random_tokens(17))])
    for layer, old in zip(memory.block_rows, held, strict=True):
        assert torch.equal(layer[neighbours], old)
        assert layer[zeros].eq(0).all()


@pytest.mark.parametrize("window", [64, None])
def test_a_window_ends_the_context(tmp_path: Path, window: int | None) -> None:
    """Up to there a window hides nothing."""
    directory = make_tiny_model(
        tmp_path, "mistral", context=128, sliding_window=window, norm_spread=0.3
    )
    runner = load(directory, "float32")
    length = runner.info.context_length
    assert length == (window or 128)
    tokens = random_tokens(length)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0, -1]
    ours = one_by_one(runner, tokens[:-1], tokens[-1:])[0]
    torch.testing.assert_close(ours.cpu(), expected, atol=1e-4, rtol=1e-4)


def test_padding_rows_of_the_vocabulary_are_not_served(tmp_path: Path) -> None:
    """160 rows, 120 real tokens."""
    directory = make_tiny_llama(tmp_path, vocab=160, real_vocab=120, context=64)
    runner = load(directory, "float32")
    assert runner.info.vocab_size == 120
    assert one_by_one(runner, [3, 4], [5]).shape == (1, 120)
