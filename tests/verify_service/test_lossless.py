"""Speculation never changes a token: every drafter, depth, batch and kind of sampling."""

from __future__ import annotations

import random

import pytest
from support.drafters import always_wrong, half_right, prophet, wild
from support.dtypes import TARGET_DTYPES
from support.tiny_models import make_tiny_llama
from support.verify_driver import Answer, Guesser, VerifyDriver, no_guesses

from foredraft.config import EngineConfig
from foredraft.engine.runner import Runner, load_runner

VOCAB = 128
PROMPTS = [
    random.Random(index).choices(range(3, VOCAB), k=length)
    for index, length in enumerate((1, 2, 7, 14, 15, 16, 17, 18, 30, 31, 33, 47, 63, 64, 65, 80))
]
SAMPLED: list[dict[str, object]] = [
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "seed": 2, "top_p": 0.9},
    {"temperature": 1.0, "seed": 3, "min_p": 0.05, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 4, "top_k": 20, "presence_penalty": 0.5},
    {"temperature": 0.7, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {9: 3.0, 10: -5.0}},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {50: -100.0}},
    {"temperature": 0.0},
]


@pytest.fixture(scope="module", params=TARGET_DTYPES)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    directory = make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=512)
    return load_runner(EngineConfig(directory, dtype=request.param, threads=2, kv_memory_mib=16))


def alone(runner: Runner, prompt: list[int], **params: object) -> Answer:
    """The plain run: no guesses, nobody else in the batch."""
    with VerifyDriver(runner) as driver:
        driver.open(0, prompt, **params)
        return driver.finish()[0]


def drafters(text: list[int], depth: int) -> dict[str, Guesser]:
    return {
        "twin": prophet(text, depth),
        "random": wild(depth, VOCAB, seed=depth),
        "always wrong": always_wrong(text, depth, VOCAB),
        "half right": half_right(text, depth, VOCAB, seed=depth),
    }


@pytest.mark.parametrize(
    "depth", [5, *(pytest.param(d, marks=pytest.mark.slow) for d in (1, 2, 8))]
)
def test_greedy_ids_are_those_of_the_plain_run(runner: Runner, depth: int) -> None:
    """Alone and eight at a time, unequal lengths."""
    prompts = PROMPTS[:8]
    params = {"max_tokens": 48, "ignore_eos": True}
    plain = [alone(runner, prompt, **params).tokens for prompt in prompts]
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, plain, strict=True)]
    for name in drafters(texts[0], depth):
        with VerifyDriver(runner) as driver:
            for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
                driver.open(index, prompt, drafters(text, depth)[name], **params)
            answers = driver.finish()
        assert [answers[index].tokens for index in range(len(prompts))] == plain, name


def test_sampled_ids_are_those_of_the_plain_run_in_a_mixed_batch(runner: Runner) -> None:
    """Penalties, bias, filters and seeds of eight neighbours."""
    prompts = PROMPTS[8:]
    cells = list(zip(prompts, SAMPLED, strict=True))
    plain = [alone(runner, p, max_tokens=40, ignore_eos=True, **params) for p, params in cells]
    for name in ("twin", "random", "always wrong", "half right"):
        with VerifyDriver(runner) as driver:
            for index, (prompt, params) in enumerate(cells):
                text = [*prompt, *plain[index].tokens]
                guesser = drafters(text, 5)[name]
                driver.open(index, prompt, guesser, max_tokens=40, ignore_eos=True, **params)
            answers = driver.finish()
        for index in range(len(cells)):
            assert answers[index].tokens == plain[index].tokens, (name, SAMPLED[index])


def test_every_guess_of_a_prophet_is_accepted(runner: Runner) -> None:
    for params in SAMPLED:
        plain = alone(runner, PROMPTS[4], max_tokens=41, ignore_eos=True, **params)
        with VerifyDriver(runner) as driver:
            guesser = prophet([*PROMPTS[4], *plain.tokens], 4)
            driver.open(0, PROMPTS[4], guesser, max_tokens=41, ignore_eos=True, **params)
            answer = driver.finish()[0]
        assert answer.tokens == plain.tokens
        assert [len(commit.tokens) for commit in answer.commits] == [5] * 8 + [1]
        assert all(commit.accepted == 4 for commit in answer.commits[:-1])


def test_a_barred_token_never_appears(runner: Runner) -> None:
    """The drafter proposes exactly the token that a bias forbids."""
    plain = alone(runner, PROMPTS[5], max_tokens=12, ignore_eos=True)
    barred = plain.tokens[3]
    bias = {barred: -100.0}
    expected = alone(runner, PROMPTS[5], max_tokens=12, ignore_eos=True, logit_bias=bias)
    with VerifyDriver(runner) as driver:
        guesser = prophet([*PROMPTS[5], *plain.tokens], 5)
        driver.open(0, PROMPTS[5], guesser, max_tokens=12, ignore_eos=True, logit_bias=bias)
        answer = driver.finish()[0]
    assert barred not in answer.tokens
    assert answer.tokens == expected.tokens


def test_seeds_give_the_same_ids_alone_and_among_neighbours(runner: Runner) -> None:
    once = alone(runner, PROMPTS[6], max_tokens=24, temperature=1.0, seed=42)
    with VerifyDriver(runner) as driver:
        for index in range(8):
            seed = 42 if index == 3 else 1000 + index
            driver.open(index, PROMPTS[6], max_tokens=24, temperature=1.0, seed=seed)
        answers = driver.finish()
    assert answers[3].tokens == once.tokens
    assert len({tuple(answer.tokens) for answer in answers.values()}) >= 7


@pytest.mark.parametrize("length", [14, 15, 16, 17, 18, 30, 31, 32, 33, 34])
@pytest.mark.parametrize("depth", [1, 4, 16, 17])
def test_rounds_that_cross_block_edges(runner: Runner, length: int, depth: int) -> None:
    prompt = PROMPTS[-1][:length]
    plain = alone(runner, prompt, max_tokens=36, ignore_eos=True)
    with VerifyDriver(runner) as driver:
        guesser = half_right([*prompt, *plain.tokens], depth, VOCAB)
        driver.open(0, prompt, guesser, max_tokens=36, ignore_eos=True)
        assert driver.finish()[0].tokens == plain.tokens


def test_log_probabilities_are_those_of_the_plain_run(runner: Runner) -> None:
    """One entry per token, the chosen one listed, none for rejected guesses."""
    params = {"max_tokens": 40, "ignore_eos": True, "logprobs": 3}
    plain = alone(runner, PROMPTS[7], **params)
    with VerifyDriver(runner) as driver:
        guesser = half_right([*PROMPTS[7], *plain.tokens], 4, VOCAB)
        driver.open(0, PROMPTS[7], guesser, **params)
        answer = driver.finish()[0]
    entries = [entry for commit in answer.commits for entry in commit.logprobs]
    expected = [entry for commit in plain.commits for entry in commit.logprobs]
    assert len(entries) == len(answer.tokens) == 40
    assert entries == expected
    for token, entry in zip(answer.tokens, entries, strict=True):
        assert entry.top_ids[0] == token
        assert entry.top_values[0] == entry.chosen


def test_a_replayed_sequence_goes_on_with_the_same_ids(runner: Runner) -> None:
    plain = alone(runner, PROMPTS[9], max_tokens=100, ignore_eos=True, temperature=1.0, seed=8)
    with VerifyDriver(runner) as driver:
        driver.open(
            0, PROMPTS[9], no_guesses, committed=plain.tokens[:70],
            max_tokens=100, ignore_eos=True, temperature=1.0, seed=8,
        )  # fmt: skip
        assert driver.finish()[0].tokens == plain.tokens[70:]
