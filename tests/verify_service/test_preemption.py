"""A sequence that loses its memory, at every stage: what it says stays the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from support.drafters import half_right, prophet
from support.dtypes import TARGET_DTYPES
from support.short_memory import ShortMemory, blocks
from support.tiny_models import make_tiny_llama
from support.verify_driver import VerifyDriver, guess_group, no_guesses
from torch import Tensor

from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner, Runner, load_runner
from foredraft.wire.messages import Commit, NodeBatch

VOCAB, CONTEXT = 128, 512
OLD, NEW = (random.Random(seed).choices(range(3, VOCAB), k=200) for seed in (1, 2))
SAMPLED = {"max_tokens": 30, "ignore_eos": True, "temperature": 1.0, "seed": 9}


@pytest.fixture(scope="module", params=TARGET_DTYPES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    model = make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=CONTEXT)
    settings = EngineConfig(model, dtype=request.param, threads=1, kv_memory_mib=2)
    runner = load_runner(settings)
    runner.chunk = 64  # also on a GPU
    return runner


@pytest.fixture
def runner(loaded: Runner) -> Iterator[Runner]:
    """64 blocks that are all free again after a test."""
    with blocks(loaded, 64):
        yield loaded


@pytest.fixture(scope="module")
def plain(loaded: Runner) -> list[Commit]:
    """What `NEW` says alone, with log-probabilities, which show the bits."""
    with VerifyDriver(loaded) as driver:
        driver.open(0, NEW, **SAMPLED, logprobs=3)
        return driver.finish()[0].commits


def tokens_of(commits: Sequence[Commit]) -> list[int]:
    return [token for commit in commits for token in commit.tokens]


@pytest.mark.parametrize("turns", [1, 2, 3, 6, 12])
def test_preempted_in_prefill_or_after_it(runner: Runner, plain: list[Commit], turns: int) -> None:
    """Four chunks of prompt, then tokens; once more while it is replayed."""
    driver = ShortMemory(runner)
    driver.open(0, OLD[:5], max_tokens=60, ignore_eos=True)
    driver.turn()
    driver.open(1, NEW, **SAMPLED, logprobs=3)
    for _ in range(turns):
        driver.turn()
    driver.scheduler.preempt()
    driver.turn()
    driver.scheduler.preempt()
    driver.finish_here()
    assert [victim.seq_id for victim in driver.victims] == [1, 1]
    assert driver.victims[0].in_prefill == (turns < 4)
    assert driver.victims[0].fed == (64 * turns if turns < 4 else 199 + turns - 3)
    assert driver.victims[1].fed == (64 if turns < 4 else 199)  # its prompt was kept
    answer = driver.answers[1]
    assert answer.tokens == tokens_of(plain)
    said = [entry for commit in answer.commits for entry in commit.logprobs]
    assert said == [entry for commit in plain for entry in commit.logprobs]
    driver.scheduler.reservations.forget_prefixes()


def embedding_of(runner: Runner) -> Tensor:
    """One row per token; what is not finite there is not finite in what the token becomes."""
    if isinstance(runner, ModelRunner):
        return runner._model.embedding
    assert runner.info.dtype == "int8"
    return runner._model._weights.embedding.scales


def test_blocks_lost_in_prefill_are_clean(runner: Runner) -> None:
    """Half a prompt of numbers that are not finite, which nobody has noticed yet."""
    broken = 100
    if runner.info.dtype == "fp8":
        pytest.skip("looks into memory that is laid out differently")
    embedding = embedding_of(runner)
    row = embedding[broken].clone()
    embedding[broken] = float("nan")
    driver = ShortMemory(runner)
    driver.open(0, [broken, *NEW], max_tokens=5)
    driver.turn()
    assert not all(layer.isfinite().all() for layer in runner._memory.block_rows)
    driver.scheduler.preempt()
    assert all(layer.isfinite().all() for layer in runner._memory.block_rows)
    driver.finish_here()
    assert driver.answers[0].error is not None
    embedding[broken] = row


@pytest.mark.parametrize("turns", [1, 6])
def test_preempted_with_a_known_beginning(runner: Runner, plain: list[Commit], turns: int) -> None:
    """Before and after its first token; the tokens that it saved are told once."""
    driver = ShortMemory(runner)
    driver.open(0, [*NEW[:150], 5, 6], max_tokens=2, ignore_eos=True)
    driver.finish_here()
    driver.open(1, NEW, half_right([*NEW, *tokens_of(plain)], 3, VOCAB), **SAMPLED)
    for _ in range(turns):
        driver.turn()
    assert driver.running[0].fed >= 128
    driver.scheduler.preempt()
    driver.finish_here()
    answer = driver.answers[1]
    assert answer.tokens == tokens_of(plain)
    assert [commit.cached for commit in answer.commits] == [128] + [0] * (len(answer.commits) - 1)
    driver.scheduler.reservations.forget_prefixes()


def test_its_own_prompt_is_not_computed_again_if_it_was_kept(
    runner: Runner, plain: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = ShortMemory(runner)
    driver.open(0, NEW, **SAMPLED)
    while len(driver.answers[0].tokens) < 10:
        driver.turn()
    driver.scheduler.preempt()
    starts: list[int] = []
    prefill = runner.prefill
    monkeypatch.setattr(
        runner,
        "prefill",
        lambda table, tokens, start: (starts.append(start), prefill(table, tokens, start)),
    )
    driver.finish_here()
    assert starts == [192]
    assert driver.answers[0].tokens == tokens_of(plain)
    driver.scheduler.reservations.forget_prefixes()


def test_half_a_replay_is_not_kept(runner: Runner, plain: list[Commit]) -> None:
    """Preempted again with one of three chunks computed: what lies behind is anybody's."""
    driver = ShortMemory(runner)
    driver.open(0, NEW, **SAMPLED)
    while not driver.answers[0].tokens:
        driver.turn()
    driver.scheduler.preempt()
    driver.scheduler.reservations.forget_prefixes()
    runner.scrub(range(1, runner.kv.total_blocks + 1))
    driver.turn()
    driver.scheduler.preempt()
    assert driver.victims[1].fed == 64
    driver.finish_here()
    assert driver.answers[0].tokens == tokens_of(plain)
    driver.scheduler.reservations.forget_prefixes()


def test_a_preempted_sequence_that_is_closed_is_gone(runner: Runner) -> None:
    driver = ShortMemory(runner)
    driver.open(0, OLD[:5], max_tokens=20, ignore_eos=True)
    driver.open(1, NEW, max_tokens=20, ignore_eos=True)
    for _ in range(7):
        driver.turn()
    driver.scheduler.preempt()
    assert driver.waiting == [1] and len(driver.scheduler) == 2
    driver.close(1)
    driver.turn()
    assert driver.waiting == [] and len(driver.scheduler) == 1
    assert driver.scheduler.find(0, 1, 1) is None
    driver.finish_here()
    driver.scheduler.reservations.forget_prefixes()


def test_late_guesses_meet_a_sequence_without_memory(runner: Runner, plain: list[Commit]) -> None:
    """Guesses of rounds that are over, of a life that is over, and of the newest root.

    What is not below the root is dropped, the rest stays and is used; a request that was drafted
    anew, or cancelled, gets nothing of what was meant for its former self.
    """
    answer = tokens_of(plain)
    text = [*NEW, *answer]
    driver = ShortMemory(runner)
    driver.open(0, NEW, **SAMPLED)
    driver.open(1, OLD, max_tokens=5, ignore_eos=True)
    opened = {seq_id: driver._opened[seq_id] for seq_id in (0, 1)}
    while len(driver.answers[0].tokens) < 8:
        driver.turn()
    sequence = driver.running[0]
    for _ in range(len(driver.running)):
        driver.scheduler.preempt()
    known = len(sequence.tokens)
    wrong = [(token + 1) % VOCAB for token in text]
    old_root, newest = text[: known - 3], text[:known]
    late = [
        guess_group(opened[0], old_root, lambda _: [text[known - 3 : known + 2], wrong[:4]]),
        guess_group(opened[0], old_root, prophet(text, 5)),
        guess_group(opened[0], newest, lambda _: [wrong[known : known + 2]]),
        guess_group(replace(opened[0], incarnation=7), newest, prophet(text, 5)),
        guess_group(opened[1], [*OLD, 5], lambda _: [[6, 7]]),
    ]
    driver._guessers[0] = no_guesses
    driver.send(NodeBatch(tuple(late)))
    driver.close(1)
    driver.turn()
    below = {tuple(sequence.tree.path(node.id)) for node in sequence.tree.walk()}
    right, mistaken = tuple(text[known : known + 2]), tuple(wrong[known : known + 2])
    assert below == {right[:1], right, mistaken[:1], mistaken}
    before = len(driver.answers[0].commits)
    driver.finish_here()
    assert driver.answers[0].tokens == answer
    assert driver.answers[0].commits[before].accepted == 2
    driver.scheduler.reservations.forget_prefixes()
