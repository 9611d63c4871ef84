"""The forward pass: equal to transformers, and the same bits for a row in any company."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.tiny_models import make_tiny_llama
from torch import Tensor
from transformers import AutoModelForCausalLM

from foredraft.config import EngineConfig
from foredraft.engine.attention_plan import Summation
from foredraft.engine.runner import ModelRunner, SequenceRows

CONTEXT = 320
SHAPES = {
    "group of three": {"hidden": 96, "heads": 6, "kv_heads": 2},
    "no groups": {"hidden": 64, "heads": 4, "kv_heads": 4},
    "one kv head": {"hidden": 60, "heads": 5, "kv_heads": 1},
}


@pytest.fixture(params=SHAPES, ids=lambda name: name.replace(" ", "-"))
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path, context=CONTEXT, **SHAPES[request.param])


@pytest.fixture(params=["float32", "auto"])
def runner(request: pytest.FixtureRequest, directory: Path) -> Iterator[ModelRunner]:
    yield load(directory, request.param)


def load(directory: Path, dtype: str, threads: int = 2) -> ModelRunner:
    return ModelRunner.load(EngineConfig(directory, dtype=dtype, threads=threads, kv_memory_mib=4))


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


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 200])
def test_logits_equal_transformers(directory: Path, length: int) -> None:
    runner = load(directory, "float32")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = random_tokens(length + 9)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0, length:]
    ours = one_by_one(runner, tokens[:length], tokens[length:]).cpu()
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("context", [1, 15, 31, 60, 64, 127, 190])
@pytest.mark.parametrize("width", [2, 3, 5, 9, 20])
def test_chain_has_the_bits_of_plain_decoding(
    runner: ModelRunner, context: int, width: int
) -> None:
    prompt, tokens = random_tokens(context), random_tokens(width, seed=1)
    plain = one_by_one(runner, prompt, tokens)
    together = runner.forward([chain(prefilled(runner, prompt), context, tokens)])
    assert torch.equal(together, plain)


@pytest.mark.parametrize("context", [14, 62, 130])
def test_siblings_do_not_see_each_other(runner: ModelRunner, context: int) -> None:
    """Root -> {a, b}, a -> c, b -> d, in two orders of the siblings."""
    prompt = random_tokens(context)
    root, a, b, c, d = random_tokens(5, seed=2)
    along_a = one_by_one(runner, prompt, [root, a, c])
    along_b = one_by_one(runner, prompt, [root, b, d])
    blocks, s = prefilled(runner, prompt), context
    first = SequenceRows(
        blocks,
        context,
        [root, a, b, c, d],
        [(s,), (s, s + 1), (s, s + 2), (s, s + 1, s + 3), (s, s + 2, s + 4)],
    )
    swapped = SequenceRows(
        blocks,
        context,
        [root, b, a, d, c],
        [(s,), (s, s + 1), (s, s + 2), (s, s + 1, s + 3), (s, s + 2, s + 4)],
    )
    logits = runner.forward([first])
    assert torch.equal(logits[[0, 1, 3]], along_a)
    assert torch.equal(logits[[0, 2, 4]], along_b)
    assert torch.equal(runner.forward([swapped])[[0, 2, 1, 4, 3]], logits)


@pytest.mark.parametrize("read", ["as it lies", "gathered"])
@pytest.mark.parametrize("context", [3, 60, 100, 122, 127, 128, 190])
def test_every_path_of_a_tree_has_the_bits_of_plain_decoding(
    runner: ModelRunner, context: int, read: str
) -> None:
    """Random trees, also across the places where spans of positions begin."""
    if read == "gathered":
        runner._tiles = replace(runner._tiles, summation=Summation(serial=False))
    chance = random.Random(context)
    prompt, tokens = random_tokens(context), random_tokens(24, seed=context)
    blocks = prefilled(runner, prompt)
    paths: list[tuple[int, ...]] = [(context,)]
    for row in range(1, len(tokens)):
        parent = chance.choice(paths[-3:]) if chance.random() < 0.7 else chance.choice(paths)
        paths.append((*parent, context + row))
    logits = runner.forward([SequenceRows(blocks, context, tokens, paths)])
    for path in (paths[-1], max(paths, key=len), chance.choice(paths)):
        line = [tokens[slot - context] for slot in path]
        rows = [slot - context for slot in path]
        assert torch.equal(logits[rows], one_by_one(runner, prompt, line))


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
    guard = torch.from_numpy(memory.block_index(torch.tensor([*before, *after, 0]).numpy()))
    runner.forward([chain(blocks, 31, random_tokens(17))])
    assert all(layer[guard.reshape(-1)].eq(0).all() for layer in memory.block_rows)


def test_padding_rows_of_the_vocabulary_are_not_served(tmp_path: Path) -> None:
    """160 rows, 120 real tokens."""
    directory = make_tiny_llama(tmp_path, vocab=160, real_vocab=120, context=64)
    runner = load(directory, "float32")
    assert runner.info.vocab_size == 120
    assert one_by_one(runner, [3, 4], [5]).shape == (1, 120)
