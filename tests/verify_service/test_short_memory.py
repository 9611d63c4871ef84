"""More sequences than memory: they make way for each other, and nobody's ids change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from support.drafters import half_right, prophet, wild
from support.short_memory import ShortMemory, blocks
from support.tiny_models import make_tiny_llama
from support.verify_driver import Guesser, VerifyDriver, no_guesses

from foredraft.config import EngineConfig, FakeEngine
from foredraft.engine.fake import FakeRunner, next_token
from foredraft.engine.kv import BlockPool
from foredraft.engine.runner import ModelRunner
from foredraft.tree.node_id import path_id, start_id
from foredraft.wire.messages import ModelInfo
from verify_service import reservations

VOCAB, CONTEXT = 128, 512
STAND_IN = ModelInfo("stand-in", "hash", VOCAB, CONTEXT, eos_token_ids=(2,))
SAMPLING: Sequence[Mapping[str, object]] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "seed": 2, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 3, "min_p": 0.05, "frequency_penalty": 0.4},
)


@dataclass(frozen=True)
class Case:
    """A request and what a plain run alone, with ample memory, answers to it."""

    prompt: list[int]
    params: Mapping[str, object]
    answer: list[int]

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.answer]


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=length)


def case_of(runner: ModelRunner, prompt: list[int], **params: object) -> Case:
    with VerifyDriver(runner) as driver:
        driver.open(0, prompt, ignore_eos=True, **params)
        return Case(prompt, params, driver.finish()[0].tokens)


def run(driver: ShortMemory, cases: Sequence[Case], guessers: Sequence[Guesser]) -> None:
    for index, (case, guesser) in enumerate(zip(cases, guessers, strict=True)):
        driver.open(index, case.prompt, guesser, ignore_eos=True, **case.params)
    answers = driver.finish()
    assert [answers[index].tokens for index in range(len(cases))] == [c.answer for c in cases]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model = make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=CONTEXT)
    return ModelRunner.load(EngineConfig(model, dtype="auto", threads=1, kv_memory_mib=16))


@pytest.fixture(scope="module")
def cases(runner: ModelRunner) -> list[Case]:
    """Greedy and sampled ones, two to four tiles each."""
    return [
        case_of(runner, prompt_of(length, length), max_tokens=100, **SAMPLING[index % 4])
        for index, length in enumerate((20, 70, 15, 100, 40, 62))
    ]


@pytest.mark.parametrize("guessed", [False, True])
@pytest.mark.parametrize("pool", [16, 17, 24])
def test_ids_are_those_of_a_plain_run_with_ample_memory(
    runner: ModelRunner,
    cases: list[Case],
    monkeypatch: pytest.MonkeyPatch,
    pool: int,
    guessed: bool,
) -> None:
    """Without head room at admission, so that as many as possible lose their memory."""
    monkeypatch.setattr(reservations, "_SOON", 0)
    guessers = [half_right(c.text, 4, VOCAB) if guessed else no_guesses for c in cases]
    with blocks(runner, pool), ShortMemory(runner) as driver:
        run(driver, cases, guessers)
    lost = Counter(victim.seq_id for victim in driver.victims)
    assert 0 not in lost and len(lost) >= 4
    assert max(lost.values()) >= (2 if pool < 20 else 1)
    assert driver.finished == sorted(driver.finished)


def test_a_little_head_room_at_admission_saves_work(
    runner: ModelRunner, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    victims = []
    for tokens in (0, reservations._SOON):
        monkeypatch.setattr(reservations, "_SOON", tokens)
        with blocks(runner, 24), ShortMemory(runner) as driver:
            run(driver, cases, [half_right(case.text, 4, VOCAB) for case in cases])
        victims.append(len(driver.victims))
    assert 0 < victims[1] < victims[0]


def test_guesses_preempt_nobody(runner: ModelRunner, cases: list[Case]) -> None:
    """Trees that would like another tile, in memory for exactly these texts."""
    texts = cases[:2]
    need = sum(-(-len(case.text) // 64) * 4 for case in texts)
    with blocks(runner, need), ShortMemory(runner) as driver:
        run(driver, texts, [wild(20, VOCAB, seed=index) for index in range(len(texts))])
        assert any(c.verified for answer in driver.answers.values() for c in answer.commits)
    assert driver.victims == []


def stand_in_case(source: random.Random) -> Case:
    prompt = prompt_of(source.randrange(1, 200), source.randrange(3))  # some begin alike
    text, most = list(prompt), source.randrange(1, 160)
    for _ in range(most):
        text.append(next_token(path_id(start_id(0, 0), text), VOCAB))
    return Case(prompt, {"max_tokens": most}, text[len(prompt) :])


def guesser_of(source: random.Random, case: Case) -> Guesser:
    depth = source.randrange(1, 12)
    return source.choice(
        [no_guesses, prophet(case.text, depth), wild(depth, VOCAB), half_right(case.text, 6, VOCAB)]
    )


def anything(runner: FakeRunner | ModelRunner, cases: Sequence[Case], seed: int) -> ShortMemory:
    """Answers and cancels ``cases``, and takes the memory of some at any time."""
    source = random.Random(seed)
    driver = ShortMemory(runner, max_sequences=source.randrange(2, 9))
    left = list(range(len(cases)))
    while left or not all(answer.done for answer in driver.answers.values()):
        if left and (len(driver.answers) < 2 or source.random() < 0.2):
            case = cases[number := left.pop(0)]
            driver.open(
                number, case.prompt, guesser_of(source, case), ignore_eos=True, **case.params
            )
        going = [number for number, answer in driver.answers.items() if not answer.done]
        if len(going) > 1 and source.random() < 0.02:
            driver.close(source.choice(going))
        if going:  # a loop without sequences waits for one
            driver.turn()
        if driver.running and source.random() < 0.05:
            driver.scheduler.preempt()
    for number, answer in driver.answers.items():
        assert answer.tokens == cases[number].answer, (seed, number)
    driver.scheduler.reservations.forget_prefixes()
    return driver


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.slow)], ids=str
)
def test_any_memory_any_company_any_time(seeds: range) -> None:
    """A stand-in whose text shows every misplaced entry, in pools of any size."""
    victims, in_prefill = 0, 0
    for seed in seeds:
        source = random.Random(seed)
        runner = FakeRunner(STAND_IN, FakeEngine(0.0))
        cases = [stand_in_case(source) for _ in range(10)]
        largest = max(-(-len(case.text) // 64) * 4 for case in cases)
        runner.kv = BlockPool(largest + source.randrange(40))
        driver = anything(runner, cases, seed)
        assert runner.kv.free_blocks == runner.kv.total_blocks
        victims += len(driver.victims)
        in_prefill += sum(victim.in_prefill for victim in driver.victims)
    assert victims > 5 * len(seeds) and in_prefill > len(seeds) / 2


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))]
)
def test_a_model_in_any_memory(runner: ModelRunner, cases: list[Case], seed: int) -> None:
    with blocks(runner, random.Random(seed).randrange(16, 30)):
        assert anything(runner, cases, seed).victims
