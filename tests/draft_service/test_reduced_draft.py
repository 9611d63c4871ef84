"""A draft that can guess some ids only: among those it guesses as it would among all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.plain_decoding import decode
from support.reduced import reduced_twin
from support.scripted_target import run_until_idle
from support.tiny_models import EOS, make_tiny_llama
from support.verify_driver import VerifyDriver

from draft_service.drafter import Drafter
from draft_service.engine.draft_engine import DraftEngine
from draft_service.engine.load import load_engine
from draft_service.identity import read_target
from draft_service.model_drafter import ModelDrafter
from draft_service.model_pass import Evaluation
from draft_service.sequence import DraftSequence
from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner
from foredraft.params import SamplingParams, Speculation
from foredraft.policy.calibration import Calibration
from foredraft.wire.messages import (
    Commit,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
)

LIMITS = Limits(max_sequences=8, max_nodes=24, max_depth=8)
IDS = sorted({EOS, *random.Random(4).sample(range(3, 128), 80)})
PROMPT = [random.Random(1).randrange(3, 128) for _ in range(20)]
BIAS = {IDS[5]: 2.0, IDS[9]: -50.0, next(i for i in range(3, 128) if i not in IDS): 3.0}


def load_draft(path: Path, target: ModelInfo) -> DraftEngine:
    engine = load_engine(EngineConfig(path, kv_memory_mib=4), target)
    engine.warm_up()  # no graph may be captured while another thread uses the GPU
    return engine


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "target", context=512)


@pytest.fixture(scope="module")
def runner(directory: Path) -> ModelRunner:
    return ModelRunner.load(EngineConfig(directory, kv_memory_mib=4))


@pytest.fixture(scope="module")
def whole(directory: Path) -> DraftEngine:
    return load_draft(directory, read_target(directory))


@pytest.fixture(scope="module")
def reduced(directory: Path) -> DraftEngine:
    twin = reduced_twin(directory, directory.parent / "reduced", IDS)
    return load_draft(twin, read_target(directory))


def opened_with(params: SamplingParams) -> OpenSequence:
    return OpenSequence(1, 0, tuple(PROMPT), params, speculation=Speculation.MODEL)


def guesses_along(
    engine: DraftEngine, target: ModelInfo, params: SamplingParams, text: Sequence[int]
) -> list[list[int]]:
    """The model's tokens after every place of the answer, best first."""
    model = ModelDrafter(engine, target)
    sequence = DraftSequence(1, opened_with(params), target, LIMITS, Calibration())
    found = []
    for token in text[len(PROMPT) :]:
        assert model.can_follow(sequence) and model.prepare(sequence)
        root = sequence.tree.root_id
        model.evaluate([Evaluation(sequence, (root,))])
        found.append([option.token for option in sequence.options(root)])
        model.move(sequence, sequence.commit([token]))
    model.release(sequence)
    return found


CASES = {
    "greedy": SamplingParams(max_tokens=400, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=400, ignore_eos=True, temperature=1.0, seed=11),
    "adjusted": SamplingParams(
        max_tokens=400,
        min_tokens=30,
        temperature=1.0,
        seed=12,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        logit_bias=BIAS | {EOS: 4.0},
    ),
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_guesses_are_those_of_the_full_twin_that_are_there(
    directory: Path,
    runner: ModelRunner,
    whole: DraftEngine,
    reduced: DraftEngine,
    params: SamplingParams,
) -> None:
    target = read_target(directory)
    text = decode(runner, PROMPT, 60, params, target.eos_token_ids)
    full = guesses_along(whole, target, params, text)
    few = guesses_along(reduced, target, params, text)
    assert all(set(guesses) <= set(IDS) for guesses in few)
    there = [(a, b) for a, b in zip(full, few, strict=True) if a[0] in IDS]
    assert 20 < len(there) < len(full)
    assert all(a[0] == b[0] for a, b in there)
    # Of the full twin's guesses those that are there come first, in the same order.
    for a, b in zip(full, few, strict=True):
        kept = [token for token in a if token in IDS]
        assert b[: len(kept)] == kept


def test_the_end_is_not_guessed_before_min_tokens(directory: Path, reduced: DraftEngine) -> None:
    params = SamplingParams(max_tokens=100, min_tokens=5, logit_bias={EOS: 100.0})
    text = [*PROMPT, *IDS[3:13]]
    guesses = guesses_along(reduced, read_target(directory), params, text)
    assert all(EOS not in tokens for tokens in guesses[:5])
    assert all(tokens[0] == EOS for tokens in guesses[5:])


def test_ids_that_the_target_lacks_are_never_guessed(tmp_path: Path) -> None:
    """The tokenizer has 128 entries, the target rows for 100 of them only."""
    target = read_target(make_tiny_llama(tmp_path / "target", vocab=100, real_vocab=128))
    draft = make_tiny_llama(tmp_path / "draft", vocab=128)
    engine = load_draft(reduced_twin(draft, tmp_path / "reduced", [50, 99, 100, 127]), target)
    params = SamplingParams(max_tokens=100, logit_bias={127: 100.0, 100: 90.0})
    model = ModelDrafter(engine, target)
    opened = OpenSequence(1, 0, (5, 6, 7), params, speculation=Speculation.MODEL)
    sequence = DraftSequence(1, opened, target, LIMITS, Calibration())
    assert model.prepare(sequence)
    model.evaluate([Evaluation(sequence, (sequence.tree.root_id,))])
    assert {option.token for option in sequence.options(sequence.tree.root_id)} == {50, 99}


class Guesses:
    """A drafter as the verify driver wants it: told the text so far, it gives its whole tree."""

    def __init__(self, engine: DraftEngine, target: ModelInfo, params: SamplingParams) -> None:
        self._drafter = Drafter(target, LIMITS, ModelDrafter(engine, target))
        self._drafter.handle(1, DraftBudget(24, 8, 0.02))
        self._drafter.handle(1, OpenSequences((opened_with(params),)))
        self._known = len(PROMPT)

    def __call__(self, tokens: Sequence[int]) -> Sequence[Sequence[int]]:
        news = tuple(tokens[self._known :])
        if news:
            assert not self._drafter.handle(1, Commits((Commit(1, 0, self._known, news),)))
        self._known = len(tokens)
        run_until_idle(self._drafter)
        (sequence,) = self._drafter._sequences.values()
        return [sequence.tree.path(node.id) for node in sequence.tree.walk()]


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_same_with_a_reduced_draft(
    directory: Path, runner: ModelRunner, reduced: DraftEngine, name: str
) -> None:
    target = read_target(directory)
    options = {field: getattr(CASES[name], field) for field in CASES[name].__slots__}
    options["max_tokens"] = 60
    guesses = Guesses(reduced, target, SamplingParams(**options))
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, **options)
        driver.open(1, PROMPT, guesses, **options)
        answers = driver.finish()
    plain, drafted = answers[0], answers[1]
    assert drafted.error is None and drafted.finish is plain.finish
    assert drafted.tokens == plain.tokens and len(plain.tokens) >= 30
    assert not set(plain.tokens) <= set(IDS)
    assert len(drafted.commits) < 0.8 * len(plain.commits)
