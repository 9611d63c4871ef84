"""The step loop: memory, limits, ends and refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import torch
from support.drafters import half_right, prophet
from support.tiny_models import make_tiny_llama
from support.verify_driver import VerifyDriver, guess_group

from foredraft.config import EngineConfig
from foredraft.engine import reference
from foredraft.engine.runner import ModelRunner, SequenceRows
from foredraft.params import FinishReason, SamplingParams, Schedule, Speculation
from foredraft.wire.errors import code_number
from foredraft.wire.messages import NodeBatch, StepResult, VerifyBudget
from verify_service.profile import profile_steps

VOCAB, CONTEXT = 128, 128
PROMPT = random.Random(7).choices(range(3, VOCAB), k=15)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=CONTEXT)


@pytest.fixture
def runner(directory: Path) -> Iterator[ModelRunner]:
    """64 blocks of 16 KiB; every test must give them all back."""
    settings = EngineConfig(directory, dtype="float32", threads=1, kv_memory_mib=1)
    runner = ModelRunner.load(settings)
    yield runner
    assert runner.kv.free_blocks == runner.kv.total_blocks


def plain_tokens(runner: ModelRunner, prompt: Sequence[int], **params: object) -> list[int]:
    with VerifyDriver(runner) as driver:
        driver.open(0, prompt, **params)
        return driver.finish()[0].tokens


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 5}, {"stop_token_ids": (40,)}])
def test_equals_the_reference_with_and_without_guesses(
    runner: ModelRunner, params: dict[str, object]
) -> None:
    """The whole algorithm on one screen says the same tokens, ends and number of steps."""

    def logits_after(tokens: Sequence[int]) -> torch.Tensor:
        blocks = runner.kv.allocate(runner.kv.blocks_for(len(tokens)))
        for start in range(0, len(tokens) - 1, runner.chunk):
            chunk = tokens[start : min(start + runner.chunk, len(tokens) - 1)]
            runner.prefill(blocks, chunk, start)
        last = len(tokens) - 1
        logits = runner.forward([SequenceRows(blocks, last, tokens[-1:], [(last,)])])[0]
        runner.kv.free(blocks)
        return logits

    sampling = SamplingParams(max_tokens=40, **params)
    eos = runner.info.eos_token_ids
    plain = reference.generate(
        logits_after, lambda _: (), PROMPT, sampling, eos=eos, context_length=CONTEXT
    )
    text = [*PROMPT, *plain.tokens]
    expected = reference.generate(
        logits_after, half_right(text, 4, VOCAB), PROMPT, sampling, eos=eos, context_length=CONTEXT
    )
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, half_right(text, 4, VOCAB), max_tokens=40, **params)
        answer = driver.finish()[0]
    assert tuple(answer.tokens) == expected.tokens == plain.tokens
    assert answer.finish is expected.finish
    assert len(answer.commits) == expected.steps < plain.steps


def test_kv_holds_all_but_the_newest_token_after_every_step(runner: ModelRunner) -> None:
    plain = plain_tokens(runner, PROMPT, max_tokens=30, ignore_eos=True)
    with VerifyDriver(runner) as driver:
        guesses = half_right([*PROMPT, *plain], 5, VOCAB)
        driver.open(0, PROMPT, guesses, max_tokens=30, ignore_eos=True)
        while not driver.answers[0].done:
            driver.step()
            sequence = driver.scheduler.find(0, 0, 1)
            if sequence is not None:
                assert sequence.fed == len(sequence.tokens) - 1


def test_a_step_tells_how_long_it_would_have_been_held(runner: ModelRunner) -> None:
    with VerifyDriver(runner) as driver:
        for drafting, limit_us in ((True, 3000), (False, 0)):
            budget = VerifyBudget(8, max_hold_us=3000, drafting=drafting, schedule=Schedule.HELD)
            driver.send(budget)
            driver.open(int(drafting), PROMPT, max_tokens=3, ignore_eos=True)
            for _ in range(3):
                step = driver.step()
                assert isinstance(step, StepResult) and step.timings.hold_limit_us == limit_us


def test_a_step_tells_what_its_guesses_promised(runner: ModelRunner) -> None:
    confidence = 0.9  # that the driver's guesses have
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, lambda _: [(5, 6)], max_tokens=9, ignore_eos=True)
        step = driver.step()
        driver.finish()
    assert isinstance(step, StepResult) and step.commits[0].verified == 2
    assert step.promised == pytest.approx(confidence + confidence**2)


@pytest.mark.parametrize("depth", [1, 8])
def test_context_limit_of_the_target(runner: ModelRunner, depth: int) -> None:
    """Room for six tokens, guesses that look past the end."""
    prompt = random.Random(1).choices(range(3, VOCAB), k=CONTEXT - 6)
    plain = plain_tokens(runner, prompt, max_tokens=50, ignore_eos=True)
    assert len(plain) == 6
    with VerifyDriver(runner) as driver:
        text = [*prompt, *plain, *range(20)]
        driver.open(0, prompt, prophet(text, depth), max_tokens=50, ignore_eos=True)
        answer = driver.finish()[0]
    assert (answer.tokens, answer.finish) == (plain, FinishReason.LENGTH)


@pytest.mark.parametrize("budget", range(1, 8))
def test_budget_of_tokens(runner: ModelRunner, budget: int) -> None:
    """Through the engine."""
    text = [*PROMPT, *plain_tokens(runner, PROMPT, max_tokens=20, ignore_eos=True)]
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, prophet(text, 5), max_tokens=budget, ignore_eos=True)
        answer = driver.finish()[0]
    assert (len(answer.tokens), answer.finish) == (budget, FinishReason.LENGTH)
    assert sum(commit.accepted for commit in answer.commits) <= budget


def test_end_of_sequence_inside_a_round(runner: ModelRunner) -> None:
    """Through the engine: nothing after the stop is delivered or counted."""
    plain = plain_tokens(runner, PROMPT, max_tokens=20, ignore_eos=True)
    stop = next(token for token in plain if token not in plain[:2])
    place = plain.index(stop)
    with VerifyDriver(runner) as driver:
        guesses = prophet([*PROMPT, *plain], 8)
        driver.open(0, PROMPT, guesses, max_tokens=20, ignore_eos=True, stop_token_ids=(stop,))
        answer = driver.finish()[0]
    assert (answer.tokens, answer.finish) == (plain[:place], FinishReason.STOP)
    assert sum(commit.accepted for commit in answer.commits) <= place


def test_blocks_for_several_tokens_at_once(runner: ModelRunner) -> None:
    """Entries of a step are the committed ones, the root and its nodes."""
    pool = runner.kv
    assert [pool.blocks_for(15 + 1 + 4), pool.blocks_for(31 + 17)] == [2, 3]
    assert pool.blocks_for(31 + 1 + 17) == 4


def test_guesses_give_way_when_memory_is_short(runner: ModelRunner) -> None:
    """With no block to spare the round shrinks and the ids stay."""
    plain = plain_tokens(runner, PROMPT, max_tokens=40, ignore_eos=True)
    need = runner.kv.blocks_for(len(PROMPT) + 40)
    taken = runner.kv.allocate(runner.kv.free_blocks - need)
    with VerifyDriver(runner) as driver:
        guesses = prophet([*PROMPT, *plain, *range(60)], 32)
        driver.open(0, PROMPT, guesses, max_tokens=40, ignore_eos=True)
        assert driver.finish()[0].tokens == plain
    runner.kv.free(taken)


def test_sequences_wait_for_memory_and_all_finish(runner: ModelRunner) -> None:
    plain = plain_tokens(runner, PROMPT, max_tokens=60, ignore_eos=True)
    taken = runner.kv.allocate(runner.kv.free_blocks - 12)
    with VerifyDriver(runner) as driver:
        for index in range(7):
            driver.open(
                index, PROMPT, prophet([*PROMPT, *plain], 4), max_tokens=60, ignore_eos=True
            )
        answers = driver.finish()
    assert all(answer.tokens == plain for answer in answers.values())
    runner.kv.free(taken)


def test_what_can_never_run_is_refused_by_name(runner: ModelRunner) -> None:
    taken = runner.kv.allocate(runner.kv.free_blocks - 4)
    runner.kv.total_blocks = 4
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, max_tokens=100)
        driver.open(1, [5, VOCAB], max_tokens=5)
        driver.open(2, [], max_tokens=5)
        driver.open(3, [5] * CONTEXT, max_tokens=5)
        driver.open(4, PROMPT, max_tokens=3)
        answers = driver.finish()
    runner.kv.total_blocks += len(taken)
    runner.kv.free(taken)
    errors = [answers[index].error for index in range(4)]
    words = ["max_tokens", "0 to 127", "at least one token", "128 tokens"]
    codes = [grpc.StatusCode.RESOURCE_EXHAUSTED] + [grpc.StatusCode.INVALID_ARGUMENT] * 3
    for error, word, code in zip(errors, words, codes, strict=True):
        assert error is not None
        assert word in error.message
        assert error.code == code_number(code)
    assert len(answers[4].tokens) == 3


def test_closing_frees_everything_at_once(runner: ModelRunner) -> None:
    with VerifyDriver(runner) as driver:
        for index in range(3):
            driver.open(index, PROMPT, max_tokens=100, ignore_eos=True)
        driver.step()
        for index in range(3):
            driver.close(index)
        driver.open(9, PROMPT, max_tokens=2)
        driver.finish()
        assert runner.kv.free_blocks == runner.kv.total_blocks


def test_values_that_are_not_finite_stay_with_their_sequence(runner: ModelRunner) -> None:
    """One input breaks the model: its request fails, and the next owner of its blocks is safe."""
    plain = plain_tokens(runner, PROMPT, max_tokens=20, ignore_eos=True)
    broken = 100
    runner._model.embedding[broken] = float("nan")
    with VerifyDriver(runner) as driver:
        driver.open(0, [5, broken, *PROMPT], max_tokens=20)
        driver.open(1, PROMPT, max_tokens=20, ignore_eos=True, logit_bias={broken: -1000.0})
        answers = driver.finish()
        assert answers[0].error is not None
        assert "not finite" in answers[0].error.message
        driver.open(2, [*PROMPT[:1]], max_tokens=2)
        driver.finish()
    assert answers[1].tokens == plain
    memory = runner._memory
    assert all(layer.isfinite().all() for layer in memory.block_rows)


def test_a_step_that_fails_ends_its_sequences_only(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_tokens(runner, PROMPT, max_tokens=5, ignore_eos=True)
    forward, broken = runner.forward, [True]

    def breaks_once(rows: Sequence[SequenceRows]) -> torch.Tensor:
        if broken.pop() if broken else False:
            raise RuntimeError("secret detail")
        return forward(rows)

    monkeypatch.setattr(runner, "forward", breaks_once)
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, max_tokens=5, ignore_eos=True)
        error = driver.finish()[0].error
        driver.open(1, PROMPT, max_tokens=5, ignore_eos=True)
        assert driver.finish()[1].tokens == plain
    assert error is not None
    assert error.code == code_number(grpc.StatusCode.INTERNAL)
    assert "incident" in error.message and "secret" not in error.message


def test_a_model_that_goes_on_failing_ends_the_loop(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(rows: Sequence[SequenceRows]) -> torch.Tensor:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(runner, "forward", fails)
    driver = VerifyDriver(runner)
    for index in range(2):
        driver.open(index, PROMPT, max_tokens=5)
        driver.loop.overlapped()
    driver.open(2, PROMPT, max_tokens=5)
    with pytest.raises(RuntimeError, match="the device is gone"):
        driver.loop.overlapped()
    driver.scheduler.close_stream(0)


def test_guesses_outside_the_vocabulary_harm_nobody(runner: ModelRunner) -> None:
    plain = plain_tokens(runner, PROMPT, max_tokens=20, ignore_eos=True)
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, lambda _: [[VOCAB]], max_tokens=20, ignore_eos=True)
        driver.send(NodeBatch(()))
        driver.open(1, PROMPT, prophet([*PROMPT, *plain], 4), max_tokens=20, ignore_eos=True)
        # The bad group is dropped whole, so its sequence is never reported as drafted.
        opened = driver._opened[0]
        driver.send(NodeBatch((guess_group(opened, PROMPT, lambda _: ()),)))
        driver._guessers[0] = lambda _: ()
        answers = driver.finish()
    assert answers[0].tokens == answers[1].tokens == plain


def test_unknown_parents_are_named_once(runner: ModelRunner) -> None:
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, max_tokens=3, ignore_eos=True)
        opened = driver._opened[0]
        stray = guess_group(opened, [1, 2, 3], lambda _: [[4], [5]])
        driver.send(NodeBatch((stray, stray)))
        first = driver.step()
        assert isinstance(first, StepResult)
        named = [driver.answers[0].commits[0].orphans]
        driver.finish()
        named += [commit.orphans for commit in driver.answers[0].commits[1:]]
    assert sorted(named, key=len)[-1] == (stray.root_id,)
    assert sum(len(orphans) for orphans in named) == 1


def test_speculation_off_ignores_guesses(runner: ModelRunner) -> None:
    plain = plain_tokens(runner, PROMPT, max_tokens=10, ignore_eos=True)
    with VerifyDriver(runner) as driver:
        guesses = prophet([*PROMPT, *plain], 4)
        options = {"max_tokens": 10, "ignore_eos": True}
        driver.open(0, PROMPT, guesses, speculation=Speculation.OFF, **options)
        answer = driver.finish()[0]
    assert answer.tokens == plain
    assert all(commit.verified == 0 for commit in answer.commits)


def test_the_profile_grows_with_the_rows_and_leaves_no_block_behind(runner: ModelRunner) -> None:
    cost = profile_steps(runner)
    assert list(cost.milliseconds) == sorted(cost.milliseconds)
    assert len(cost.rows) == len(cost.milliseconds) >= 5
