"""How likely a prompt's own tokens are: as another implementation says, whatever else goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch
from support.drafters import half_right
from support.short_memory import ShortMemory, blocks
from support.tiny_models import make_tiny_llama
from support.verify_driver import Answer, VerifyDriver
from transformers import AutoModelForCausalLM

from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner
from foredraft.wire.errors import code_number
from foredraft.wire.messages import PromptLogprobs

VOCAB, TOP = 128, 3
LENGTHS = (1, 2, 63, 64, 65, 66, 129)
PROMPTS = {n: random.Random(n).choices(range(3, VOCAB), k=n) for n in (*LENGTHS, 200)}
ASKED = {"max_tokens": 20, "ignore_eos": True, "logprobs": TOP}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=512)


@pytest.fixture(scope="module")
def runner(directory: Path) -> ModelRunner:
    settings = EngineConfig(directory, dtype="float32", threads=1, kv_memory_mib=4)
    runner = ModelRunner.load(settings)
    runner.chunk = 64  # also on a GPU
    return runner


@pytest.fixture
def few_blocks(runner: ModelRunner) -> Iterator[ModelRunner]:
    with blocks(runner, 64):
        yield runner


@pytest.fixture(scope="module")
def expected(directory: Path) -> dict[int, torch.Tensor]:
    """log_softmax at every place of each prompt but the last."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        return {
            n: model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
            for n, prompt in PROMPTS.items()
        }


def scores(answer: Answer) -> PromptLogprobs:
    """Those of an answer; they come once, with its first commit."""
    first, *later = [commit.prompt for commit in answer.commits]
    assert first is not None and not any(later)
    return first


def check(found: PromptLogprobs, expected: torch.Tensor, prompt: list[int]) -> None:
    places = len(prompt) - 1
    assert (len(found.chosen), len(found.top_ids)) == (places, TOP * places)
    chosen = expected.gather(1, torch.tensor(prompt[1:], dtype=torch.int64).unsqueeze(1))
    torch.testing.assert_close(torch.tensor(found.chosen), chosen[:, 0], atol=1e-4, rtol=0)
    values = torch.tensor(found.top_values).view(places, TOP)
    torch.testing.assert_close(values, expected.topk(TOP).values, atol=1e-4, rtol=0)
    ids = torch.tensor(found.top_ids, dtype=torch.int64).view(places, TOP)
    torch.testing.assert_close(values, expected.gather(1, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("guessing", [False, True])
def test_shorter_and_longer_than_a_chunk_side_by_side(
    runner: ModelRunner, expected: dict[int, torch.Tensor], guessing: bool
) -> None:
    """Beside each of them the same prompt unscored, which says the same."""
    plain = {}
    with VerifyDriver(runner) as driver:
        for n in LENGTHS:
            driver.open(n, PROMPTS[n], **ASKED)
        plain = {n: answer.tokens for n, answer in driver.finish().items()}
    with VerifyDriver(runner) as driver:
        for n in LENGTHS:
            guesses = {}
            if guessing:
                guesses["guesses"] = half_right([*PROMPTS[n], *plain[n]], 4, VOCAB)
            driver.open(n, PROMPTS[n], score_prompt=True, **guesses, **ASKED)
            driver.open(1000 + n, PROMPTS[n], **guesses, **ASKED)
        answers = driver.finish()
    for n in LENGTHS:
        assert answers[n].tokens == answers[1000 + n].tokens == plain[n]
        assert not any(commit.prompt for commit in answers[1000 + n].commits)
        check(scores(answers[n]), expected[n], PROMPTS[n])


def test_a_known_prompt_is_run_again_to_be_scored(
    runner: ModelRunner, expected: dict[int, torch.Tensor]
) -> None:
    with VerifyDriver(runner) as driver:
        for seq_id, scored in enumerate((False, True, False)):
            driver.open(seq_id, PROMPTS[129], score_prompt=scored, **ASKED)
            driver.finish()
        answers = driver.answers
    assert [answers[i].commits[0].cached for i in range(3)] == [0, 0, 128]
    check(scores(answers[1]), expected[129], PROMPTS[129])


def test_no_best_tokens(runner: ModelRunner) -> None:
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPTS[65], score_prompt=True, max_tokens=1, logprobs=0)
        found = scores(driver.finish()[0])
    assert (len(found.chosen), found.top_ids, found.top_values) == (64, (), ())


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6])
def test_preempted_in_prefill_or_after_it(
    few_blocks: ModelRunner, expected: dict[int, torch.Tensor], turns: int
) -> None:
    """Four chunks of prompt, then tokens."""
    driver = ShortMemory(few_blocks)
    driver.open(0, PROMPTS[2], max_tokens=60, ignore_eos=True)
    driver.turn()
    driver.open(1, PROMPTS[200], score_prompt=True, **ASKED)
    for _ in range(turns):
        driver.turn()
    driver.scheduler.preempt()
    driver.finish_here()
    assert [victim.seq_id for victim in driver.victims] == [1]
    check(scores(driver.answers[1]), expected[200], PROMPTS[200])
    driver.scheduler.reservations.forget_prefixes()


def test_a_resumed_sequence_is_not_scored_again(runner: ModelRunner) -> None:
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPTS[65], score_prompt=True, committed=[5], **ASKED)
        assert not any(commit.prompt for commit in driver.finish()[0].commits)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_end_their_sequence(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Only the first chunk is broken, and none of what the step itself computes."""
    run = runner.prefill_scored

    def broken(blocks: list[int], tokens: list[int], start: int) -> torch.Tensor:
        logits = run(blocks, tokens, start).clone()
        if start == 0:
            logits[1, 7] = wrong
        return logits

    monkeypatch.setattr(runner, "prefill_scored", broken)
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPTS[129], score_prompt=True, **ASKED)
        driver.open(1, PROMPTS[129], **ASKED)
        answers = driver.finish()
    error = answers[0].error
    assert error is not None
    assert error.code == code_number(grpc.StatusCode.INTERNAL)
    assert "not finite" in error.message
    assert answers[1].error is None
    assert not answers[0].commits
