"""Replays bring what services would: counts that are known by hand, and twins that know it all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.scripted_target import groups_of, run_until_idle
from support.tiny_models import make_tiny_llama
from support.verify_driver import VerifyDriver, guess_group

from bench.cells import DRAFTS, STREAM, Cell, cells_of
from bench.reader import Reader
from bench.recorded import Question, Recorded
from bench.replay import Replay, Replayed, Tally
from draft_service.engine.lean import LeanEngine
from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner, SequenceRows
from foredraft.engine.sampling import SampledRow, choose
from foredraft.params import FinishReason, Speculation
from foredraft.policy.cost import StepCost
from foredraft.tree.node_id import child_id
from foredraft.wire.messages import (
    Commits,
    Limits,
    ModelInfo,
    NodeBatch,
    OpenSequence,
    OpenSequences,
    Source,
)

EOS = 2
TARGET = ModelInfo("tiny", "hash", vocab_size=128, context_length=256, eos_token_ids=(EOS,))
COUNT = 24  # tokens of an answer: whole steps of 6 and of 8


def flat(rows: int) -> float:
    return 1.0


def question(prompt: Sequence[int], temperature: float = 0.0, seed: int = 1) -> Question:
    return Question("tiny", "gsm8k", "gsm8k", 0, tuple(prompt), COUNT, temperature, seed)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def runner(directory: Path) -> ModelRunner:
    return ModelRunner.load(EngineConfig(directory, dtype="float32", kv_memory_mib=4))


@pytest.fixture(scope="module")
def twin(directory: Path) -> LeanEngine:
    return load_draft(directory)


def load_draft(directory: Path) -> LeanEngine:
    return LeanEngine.load(EngineConfig(directory, dtype="float32", kv_memory_mib=4), TARGET)


def decode(runner: ModelRunner, asked: Question) -> Recorded:
    """Plain decoding, row by row."""
    text = list(asked.prompt)
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(text) + COUNT))
    runner.prefill(blocks, text[:-1], 0)
    for position in range(len(text), len(text) + COUNT):
        rows = SequenceRows(blocks, position - 1, [text[-1]], [(position - 1,)])
        sampled = SampledRow(asked.params, 0, position, len(asked.prompt), tuple(text))
        text += choose(runner.forward([rows]), [sampled], (EOS,))
    runner.kv.free(blocks)
    tokens = tuple(text[len(asked.prompt) :])
    assert EOS not in tokens, "such an answer would have ended"
    return Recorded(asked, tokens, FinishReason.LENGTH)


@pytest.fixture(scope="module")
def answers(runner: ModelRunner) -> list[Recorded]:
    """Greedy and sampled ones, with a seed each."""
    source = random.Random(5)
    prompts = [[source.randrange(3, 128) for _ in range(12)] for _ in range(3)]
    return [
        decode(runner, question(prompt, temperature, seed))
        for temperature in (0.0, 1.0)
        for seed, prompt in enumerate(prompts, start=1)
    ]


def play(cell: Cell, answers: Sequence[Recorded], twin: LeanEngine | None = None) -> Tally:
    model = None if twin is None else Reader(twin, TARGET)
    tally = Replay(cell, TARGET, 2, flat, model).play(answers)
    assert tally.tokens == sum(len(answer.tokens) for answer in answers)
    return tally


@pytest.mark.parametrize("name", ["chain5", "chain7"])
def test_a_twin_is_right_to_the_end_of_every_chain(
    twin: LeanEngine, answers: list[Recorded], name: str
) -> None:
    """With the noise of seed and position, at any temperature."""
    [cell] = cells_of([DRAFTS[name]], [64], 0.05, 32)
    tally = play(cell, answers, twin)
    length = DRAFTS[name].chain
    assert tally.steps == len(answers) * COUNT // (length + 1)
    assert tally.rows == tally.steps * (length + 1)  # all are verified, and nothing beside them
    counts = tally.guesses[Source.MODEL]
    assert counts.accepted == counts.verified == [tally.steps] * length
    assert tally.drafted == tally.steps * length


def test_another_seed_is_another_answer(twin: LeanEngine, answers: list[Recorded]) -> None:
    hot = [answer for answer in answers if answer.question.temperature]
    other = [replace(one, question=replace(one.question, seed=99)) for one in hot]
    [cell] = cells_of([DRAFTS["chain5"]], [64], 0.05, 32)
    assert play(cell, other, twin).steps > 2 * play(cell, hot, twin).steps


def test_a_tree_of_a_twin_accepts_as_deep_as_it_is_allowed(
    twin: LeanEngine, answers: list[Recorded]
) -> None:
    greedy = [answer for answer in answers if not answer.question.temperature]
    cell = Cell(DRAFTS["tree"], nodes=48, min_survival=0.0, max_depth=2)
    tally = play(cell, greedy, twin)
    assert tally.steps == len(greedy) * COUNT // 3
    assert tally.rows > 3 * tally.steps  # alternatives were verified, too


def test_text_that_repeats_is_guessed_by_the_suffix_cache() -> None:
    """Four nodes a step, all right: five tokens, and the whole answer is a loop."""
    asked = replace(question([5] * 8), max_tokens=70)
    cell = Cell(DRAFTS["suffix"], nodes=4, min_survival=0.0)
    tally = play(cell, [Recorded(asked, (5,) * 70, FinishReason.LENGTH)])
    assert (tally.steps, tally.loop_steps, tally.loop_tokens) == (14, 14, 70)
    assert tally.guesses[Source.SUFFIX].accepted == [14] * 4


def test_an_answer_that_stops_takes_a_step_for_its_end() -> None:
    answer = Recorded(question(range(10, 20)), (30, 31), FinishReason.STOP)
    tally = play(Cell(DRAFTS["suffix"], nodes=4, min_survival=1.0), [answer])
    assert (tally.steps, tally.tokens, tally.rows) == (3, 2, 3)


def test_an_empty_answer_that_was_cut_is_over_before_it_begins() -> None:
    answer = Recorded(question(range(10, 20)), (), FinishReason.LENGTH)
    assert play(Cell(DRAFTS["suffix"], nodes=4), [answer]).steps == 0


class DraftedDriver(VerifyDriver):
    """The real verify loop, and the drafter that a cell asks for instead of a function."""

    def __init__(self, target: ModelRunner, cell: Cell, draft: LeanEngine) -> None:
        super().__init__(target, max_nodes=cell.nodes)
        model = Reader(draft, target.info)
        self._drafter = cell.drafter(target.info, 1, model)

    def _guess(self, seq_id: int) -> None:
        answer, asked = self.answers[seq_id], self._opened[seq_id]
        if answer.commits:
            self._drafter.handle(STREAM, Commits(tuple(answer.commits[-1:])))
        else:
            self._drafter.handle(STREAM, OpenSequences((asked,)))
        self.send(NodeBatch(tuple(groups_of(run_until_idle(self._drafter)))))


@pytest.mark.parametrize("name", ["tree", "both"])
def test_a_replay_brings_what_the_verify_loop_does(
    runner: ModelRunner,
    answers: list[Recorded],
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sampled answers; the draft is another model, and so right now and then."""
    monkeypatch.setattr(StepCost, "observed", lambda self, *seen: self)  # rows stay free
    other = make_tiny_llama(tmp_path_factory.mktemp("draft") / "other", seed=1)
    draft = load_draft(other)
    cell = Cell(DRAFTS[name], nodes=12)
    hot = [answer for answer in answers if answer.question.temperature]
    accepted = 0
    for answer in hot:
        asked = answer.question
        with DraftedDriver(runner, cell, draft) as driver:
            driver.open(
                1,
                asked.prompt,
                speculation=cell.draft.speculation,
                max_tokens=asked.max_tokens,
                temperature=asked.temperature,
                seed=asked.seed,
            )
            served = driver.finish()[1]
        tally = Replay(cell, runner.info, 1, flat, Reader(draft, runner.info)).play([answer])
        assert tuple(served.tokens) == answer.tokens
        assert tally.steps == len(served.commits)
        assert tally.rows - tally.steps == sum(commit.verified for commit in served.commits)
        accepted += sum(commit.accepted for commit in served.commits)
    assert accepted > 0


def test_no_step_waits_for_the_reading_of_a_prompt(
    twin: LeanEngine, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    read = twin.prefill

    def slow(blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        now[0] += 1.0
        read(blocks, tokens, start)

    monkeypatch.setattr("bench.reader.perf_counter", lambda: now[0])
    monkeypatch.setattr(twin, "prefill", slow)
    prompt = list(range(3, 3 + 40))
    tally = play(Cell(DRAFTS["tree"], 12), [decode(runner, question(prompt, 0.0, 1))], twin)
    assert now[0] == 1.0 and tally.later.passes
    assert (tally.opening.model_us, tally.later.model_us) == (1_000_000, 0)


def opened(asked: Question) -> OpenSequence:
    return OpenSequence(7, 0, asked.prompt, asked.params, speculation=Speculation.AUTO)


def replayed(asked: Question, tokens: Sequence[int], finish: FinishReason) -> Replayed:
    answer = Recorded(asked, tuple(tokens), finish)
    return Replayed(opened(asked), answer, TARGET, Limits(1, 16, 8))


def test_guesses_are_judged_where_their_parents_were_accepted() -> None:
    """Guesses 30 31 9 and 30 8 4 and 33; the answer is 30 31 32 33."""
    asked = question([10, 11])
    one = replayed(asked, [30, 31, 32, 33], FinishReason.STOP)
    guesses = [[30, 31, 9], [30, 8, 4], [33]]
    one.sequence.attach(guess_group(opened(asked), asked.prompt, lambda tokens: guesses))
    tally = Tally()
    commit = one.step({node.node_id for node in one.candidates(0)}, tally)
    assert (commit.position, commit.tokens) == (2, (30, 31, 32))
    assert (commit.verified, commit.accepted) == (6, 2)
    counts = tally.guesses[Source.SUFFIX]
    assert (counts.verified, counts.accepted) == ([2, 2, 1], [1, 1, 0])
    assert (counts.bins[9].count, counts.bins[9].accepted) == (5, 2)
    assert counts.content()["bins"][9] == {"count": 5, "predicted": 0.9, "accepted": 0.4}
    assert one.step((), tally).tokens == (33,) and not one.done
    assert one.step((), tally).tokens == () and one.done
    assert (tally.steps, tally.tokens) == (3, 4)


def test_only_chosen_nodes_are_verified() -> None:
    asked = question([10, 11])
    one = replayed(asked, [30, 31, 32], FinishReason.STOP)
    one.sequence.attach(guess_group(opened(asked), asked.prompt, lambda tokens: [[30, 31]]))
    first = child_id(one.sequence.tree.root_id, 30)
    tally = Tally()
    assert one.step({first}, tally).tokens == (30, 31)
    assert tally.guesses[Source.SUFFIX].verified == [1]


def test_the_end_may_be_guessed() -> None:
    asked = question([10, 11])
    one = replayed(asked, [30], FinishReason.STOP)
    one.sequence.attach(guess_group(opened(asked), asked.prompt, lambda tokens: [[30, EOS]]))
    tally = Tally()
    commit = one.step({node.node_id for node in one.candidates(0)}, tally)
    assert (commit.tokens, commit.accepted, one.done) == ((30,), 1, True)
    assert tally.guesses[Source.SUFFIX].accepted == [1, 1]


def test_a_step_verifies_what_pays() -> None:
    """With rows as dear as steps nothing pays, so every step brings one token."""
    cell = Cell(DRAFTS["suffix"], nodes=4, min_survival=0.0)
    asked = replace(question([5] * 8), max_tokens=20)
    answer = Recorded(asked, (5,) * 20, FinishReason.LENGTH)
    tally = Replay(cell, TARGET, 1, lambda rows: float(rows) ** 2).play([answer])
    assert (tally.steps, tally.rows) == (20, 20) and tally.drafted
