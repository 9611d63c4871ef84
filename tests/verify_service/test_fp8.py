"""The services on a target in FP8: the same text with guesses and without, whatever happens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.drafters import half_right, wild
from support.short_memory import ShortMemory, blocks
from support.tiny_models import make_tiny_llama
from support.verify_driver import Answer, VerifyDriver, no_guesses

from foredraft.config import EngineConfig
from foredraft.engine.runner import Runner, load_runner
from foredraft.params import FinishReason
from foredraft.wire.messages import TokenLogprobs

VOCAB = 128
PROMPT, OTHER = (random.Random(seed).choices(range(3, VOCAB), k=70) for seed in (1, 2))
CELLS: list[tuple[int, dict[str, object]]] = [
    (1, {"temperature": 0.0}),
    (17, {"temperature": 1.0, "seed": 3, "min_p": 0.05, "repetition_penalty": 1.3}),
    (65, {"temperature": 0.7, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {9: 3.0}}),
]
SAMPLED = {"max_tokens": 20, "ignore_eos": True, "temperature": 1.0, "seed": 9, "logprobs": 2}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    model = make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=256)
    loaded = load_runner(EngineConfig(model, dtype="fp8", device="cpu", threads=1, kv_memory_mib=2))
    assert loaded.info.dtype == "fp8"
    return loaded


def alone(runner: Runner, prompt: list[int], **params: object) -> Answer:
    with VerifyDriver(runner) as driver:
        driver.open(0, prompt, **params)
        return driver.finish()[0]


def said(answer: Answer) -> list[TokenLogprobs]:
    """Log-probabilities show the bits."""
    return [entry for commit in answer.commits for entry in commit.logprobs]


@pytest.fixture(scope="module")
def plain(runner: Runner) -> Answer:
    return alone(runner, PROMPT, **SAMPLED)


def test_a_mixed_batch_with_guesses_says_what_each_says_alone(runner: Runner) -> None:
    options = {"max_tokens": 16, "ignore_eos": True}
    answers = [alone(runner, PROMPT[:length], **options, **params) for length, params in CELLS]
    verified = 0
    for name in ("half right", "random"):
        with VerifyDriver(runner) as driver:
            for index, (length, params) in enumerate(CELLS):
                text = [*PROMPT[:length], *answers[index].tokens]
                guesser = half_right(text, 5, VOCAB) if name == "half right" else wild(5, VOCAB, 1)
                driver.open(index, PROMPT[:length], guesser, **options, **params)
            found = driver.finish()
        assert [found[i].tokens for i in range(len(CELLS))] == [a.tokens for a in answers], name
        verified += sum(c.accepted for answer in found.values() for c in answer.commits)
    assert verified > 10


def test_a_replayed_sequence_goes_on_with_the_same_bits(runner: Runner, plain: Answer) -> None:
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, no_guesses, committed=plain.tokens[:12], **SAMPLED)
        replayed = driver.finish()[0]
    assert replayed.tokens == plain.tokens[12:]
    assert said(replayed) == said(plain)[12:]


@pytest.mark.parametrize("turns", [1, 6])
def test_a_preempted_sequence_says_the_same(runner: Runner, plain: Answer, turns: int) -> None:
    """In the middle of its prompt, and behind it."""
    with blocks(runner, 64):
        driver = ShortMemory(runner)
        driver.open(0, OTHER[:5], max_tokens=30, ignore_eos=True)
        driver.turn()
        driver.open(1, PROMPT, **SAMPLED)
        for _ in range(turns):
            driver.turn()
        driver.scheduler.preempt()
        driver.finish_here()
        assert [victim.seq_id for victim in driver.victims] == [1]
        assert said(driver.answers[1]) == said(plain)
        driver.scheduler.reservations.forget_prefixes()


def test_a_known_prompt_is_not_computed_again(runner: Runner, plain: Answer) -> None:
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, max_tokens=2, ignore_eos=True)
        driver.finish()
        driver.open(1, PROMPT, **SAMPLED)
        again = driver.finish()[1]
    assert again.commits[0].cached == 64
    assert said(again) == said(plain)


@pytest.mark.parametrize("context", [70, 128])
def test_guesses_at_the_end_of_the_context(tmp_path: Path, context: int) -> None:
    """They lie behind it, in blocks of tiles that are not all context."""
    model = make_tiny_llama(tmp_path / "model", vocab=VOCAB, context=context)
    settings = EngineConfig(model, dtype="fp8", device="cpu", threads=1, kv_memory_mib=2)
    runner, prompt = load_runner(settings), (PROMPT * 2)[: context - 9]
    expected = alone(runner, prompt, max_tokens=20, ignore_eos=True)
    with VerifyDriver(runner) as driver:
        driver.open(0, prompt, fan, max_tokens=20, ignore_eos=True)
        found = driver.finish()[0]
    assert found.error is None and len(found.tokens) == 9
    assert found.tokens == expected.tokens and found.finish is FinishReason.LENGTH


def fan(tokens: Sequence[int]) -> Sequence[Sequence[int]]:
    """Sixty guesses of two levels."""
    return [(token, 5) for token in range(3, 33)]
