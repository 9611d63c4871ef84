"""The draft model at work: a twin is always right, the KV keeps step, limits hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.plain_decoding import decode
from support.scripted_target import (
    ScriptedTarget,
    commit_all,
    exchange,
    groups_of,
    run_until_idle,
)
from support.tiny_models import make_tiny_llama

from draft_service.drafter import Drafter
from draft_service.engine.draft_engine import DraftEngine, Extension, Guesses
from draft_service.engine.lean import LeanEngine
from draft_service.engine.rows import rows_of
from draft_service.identity import read_target
from draft_service.model_drafter import CATCH_UP_ROWS, ModelDrafter
from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner
from foredraft.params import SamplingParams, Speculation
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
    Source,
)

LIMITS = Limits(max_sequences=8, max_nodes=24, max_depth=8)
BUDGET = DraftBudget(24, 8, 0.02)


def load(path) -> ModelRunner:
    return ModelRunner.load(EngineConfig(path, dtype="float32", kv_memory_mib=4))


def load_draft(path, target: ModelInfo, *, static: bool = False) -> LeanEngine:
    settings = EngineConfig(path, dtype="float32", kv_memory_mib=4)
    return LeanEngine.load(settings, target, static=static)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("twin"), context=512)


@pytest.fixture(scope="module")
def runner(directory) -> ModelRunner:
    return load(directory)


@pytest.fixture(scope="module", params=[False, True], ids=["pieces", "static"])
def engine(directory, request) -> LeanEngine:
    """The twin as a draft, in passes of any shape and of fixed shapes."""
    return load_draft(directory, read_target(directory), static=request.param)


@pytest.fixture(scope="module")
def pieces(directory) -> LeanEngine:
    return load_draft(directory, read_target(directory))


def make_drafter(engine: DraftEngine, target: ModelInfo, budget: DraftBudget = BUDGET) -> Drafter:
    drafter = Drafter(target, LIMITS, ModelDrafter(engine, target))
    drafter.handle(1, budget)
    return drafter


def random_prompt(seed: int, length: int = 20, vocab: int = 128) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, vocab) for _ in range(length)]


def open_model(seq_id: int, prompt: Sequence[int], params: SamplingParams) -> OpenSequence:
    return OpenSequence(seq_id, 0, tuple(prompt), params, speculation=Speculation.MODEL)


def check_kv(drafter: Drafter) -> None:
    """What is fed and where nodes lie, for every sequence."""
    for sequence in drafter._sequences.values():
        kv = sequence.kv
        if kv is None:
            assert not sequence.evaluated
            continue
        root = sequence.tree.root_id
        assert (root in sequence.evaluated) == (kv.fed == len(sequence.tokens))
        assert set(kv.slots) == sequence.evaluated - {root}
        assert set(kv.slots) <= set(sequence.tree.nodes)
        assert all(slot >= len(sequence.tokens) for slot in kv.slots.values())
        assert max(kv.slots.values(), default=0) < 16 * len(kv.blocks)
        if not sequence.tree.nodes:
            assert kv.fed <= len(sequence.tokens)


def kv_slots(drafter: Drafter) -> dict[int, int]:
    """Slots of all nodes that are in the KV."""
    return {n: s for one in drafter._sequences.values() if one.kv for n, s in one.kv.slots.items()}


class CorruptingEngine:
    """A draft that guesses nothing but token 0 while ``corrupt`` is set."""

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine
        self.corrupt = False

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def extend(self, batch: Sequence[Extension], meanwhile: Callable[[], None]) -> Guesses:
        guesses = self._engine.extend(batch, meanwhile)
        looks = len(guesses.tokens)
        return Guesses([[0]] * looks, [[1.0]] * looks) if self.corrupt else guesses


NEVER_ZERO = {0: -1000.0}  # so that a corrupted guess is surely wrong


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=400, ignore_eos=True, logit_bias=NEVER_ZERO),
        SamplingParams(
            max_tokens=400,
            ignore_eos=True,
            temperature=1.0,
            top_p=0.9,
            top_k=40,
            seed=11,
            logit_bias=NEVER_ZERO,
        ),
        SamplingParams(
            max_tokens=400,
            ignore_eos=True,
            temperature=0.7,
            seed=12,
            repetition_penalty=1.3,
            frequency_penalty=0.2,
            logit_bias=NEVER_ZERO | {7: 3.0, 9: -50.0},
        ),
    ],
    ids=["greedy", "sampled", "penalties"],
)
def test_a_twin_is_right_in_every_round_that_is_not_corrupted(
    directory, runner, engine, params
) -> None:
    """300 tokens; the second pass of every third round guesses nonsense."""
    prompt = random_prompt(1)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(runner, prompt, 300, params))
    corrupting = CorruptingEngine(engine)
    drafter = make_drafter(corrupting, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    rounds = corrupted = accepted = 0
    while not target.done:
        rounds += 1
        passes = 0
        while drafter.busy:
            corrupting.corrupt = rounds % 3 == 0 and passes >= 1
            for group in groups_of(drafter.draft()):
                target.take(group)
            passes += 1
            check_kv(drafter)
        if rounds % 3:
            assert target.first_wrong() is None
            accepted += len(target.accepted())
        else:
            corrupted += target.first_wrong() is not None
        (sequence,) = drafter._sequences.values()
        assert sequence.kv.fed == len(sequence.tokens) or not sequence.tree.nodes
        commit_all(drafter, [target])
        check_kv(drafter)
    assert not target.orphans
    assert corrupted > 3 and accepted > 150


def test_a_pause_without_drafts_leaves_the_twin_right(directory, runner, engine) -> None:
    """Rounds whose drafts are switched off, short and longer than a catch-up pass."""
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    prompt = random_prompt(2)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(runner, prompt, 250, params))
    drafter = make_drafter(engine, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    depths = []
    for count in [8, 3, 8, 1, 8, CATCH_UP_ROWS + 20, 8, engine.chunk + 40, 8]:
        drafting = count == 8
        drafter.handle(1, BUDGET if drafting else DraftBudget(0, 0, 1.0))
        for _ in range(count):
            exchange(drafter, [target])
            if drafting:
                assert target.first_wrong() is None
                depths.append(len(target.accepted()))
            drafter.handle(1, Commits((target.step(),)))
            check_kv(drafter)
            if target.done:
                break
    assert sum(depths) > 60


def test_a_long_prompt_is_prefilled_while_the_answers_go_out(directory, runner, pieces) -> None:
    """The verifier is never kept waiting for the drafter's own prefill."""
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    prompt = random_prompt(3, length=3 * pieces.chunk + 5)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(runner, prompt, 40, params))
    drafter = make_drafter(pieces, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    (group,) = groups_of(drafter.draft())
    assert group.complete and not group.tokens and drafter.busy
    target.take(group)
    exchange(drafter, [target])  # the rest of the prefill: no second answer for this root
    assert len(target.tree) == 0
    while not target.done:
        commit_all(drafter, [target])
        exchange(drafter, [target])
        assert target.first_wrong() is None
    assert len(target.proposed) > 10


def test_many_sequences_in_one_batch(directory, runner, engine) -> None:
    """Unequal prompts and parameters share passes; each twin is right."""
    drafter = make_drafter(engine, read_target(directory))
    targets = []
    for index in range(6):
        params = SamplingParams(
            max_tokens=400, ignore_eos=True, temperature=(0.0, 0.8)[index % 2], seed=index
        )
        prompt = random_prompt(index, length=5 + 13 * index)
        opened = open_model(index, prompt, params)
        targets.append(ScriptedTarget(opened, decode(runner, prompt, 40 + 5 * index, params)))
    drafter.handle(1, OpenSequences(tuple(target.opened for target in targets)))
    while not all(target.done for target in targets):
        exchange(drafter, targets)
        for target in targets:
            assert target.done or target.first_wrong() is None
        commit_all(drafter, targets)
        check_kv(drafter)
    assert all(len(target.proposed) > 20 for target in targets)


def test_suffix_and_model_share_one_tree(directory, runner, pieces) -> None:
    """Guesses of both sources hang below each other and the model's stay right."""
    params = SamplingParams(max_tokens=400, ignore_eos=True, logit_bias={20: 60.0})
    prompt = random_prompt(5)
    text = decode(runner, prompt, 30, params)
    free = SamplingParams(max_tokens=400, ignore_eos=True)
    opened = OpenSequence(1, 0, tuple(text), free)
    target = ScriptedTarget(opened, decode(runner, text, 60, free))
    drafter = make_drafter(pieces, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    sources = set()
    while not target.done:
        exchange(drafter, [target])
        sources |= {node.source for node in target.tree.walk()}
        commit_all(drafter, [target])
        check_kv(drafter)
    assert sources == {Source.MODEL, Source.SUFFIX}


def test_nothing_below_an_end_and_drafting_goes_on_after_it(directory, runner, pieces) -> None:
    """The draft loves EOS, the target never takes it."""
    params = SamplingParams(max_tokens=100, logit_bias={2: 100.0})
    prompt = random_prompt(6)
    opened = open_model(1, prompt, params)
    free = SamplingParams(max_tokens=100, logit_bias={2: -100.0})
    target = ScriptedTarget(opened, decode(runner, prompt, 20, free))
    drafter = make_drafter(pieces, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    rounds = 0
    while not target.done:
        exchange(drafter, [target])
        ends = [node for node in target.tree.walk() if node.token == 2]
        assert ends and all(not node.children for node in ends)
        commit_all(drafter, [target])
        rounds += 1
    assert rounds < 20  # siblings of the end still help


def test_min_tokens_keeps_the_end_away(directory, engine) -> None:
    params = SamplingParams(max_tokens=100, min_tokens=50, logit_bias={2: 100.0})
    opened = open_model(1, random_prompt(6), params)
    target = ScriptedTarget(opened, random_prompt(6))
    drafter = make_drafter(engine, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    exchange(drafter, [target])
    assert len(target.tree) > 0
    assert all(node.token != 2 for node in target.tree.walk())


def test_a_draft_with_a_shorter_context_stops_and_the_suffix_goes_on(
    tmp_path, directory, runner
) -> None:
    """Drafter 64, target 512; another sequence keeps its model guesses."""
    info = read_target(directory)
    short = load_draft(make_tiny_llama(tmp_path / "short", context=64), info)
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    opened = [
        OpenSequence(1, 0, tuple(random_prompt(7, 60)), params),
        open_model(2, random_prompt(8, 5), params),
    ]
    texts = [
        decode(runner, one.prompt, count, params)
        for one, count in zip(opened, (100, 30), strict=True)
    ]
    texts[0][100:] = texts[0][40:100]  # something for the suffix cache
    targets = [ScriptedTarget(one, text) for one, text in zip(opened, texts, strict=True)]
    drafter = make_drafter(short, info, DraftBudget(24, 8, 0.0))
    drafter.handle(1, OpenSequences(tuple(opened)))
    sources_behind = set()
    while not all(target.done for target in targets):
        exchange(drafter, targets)
        first = targets[0]
        for node in first.tree.walk():
            position = first.known - 1 + node.depth
            if node.source is Source.MODEL:
                assert position <= 64 and first.known <= 64
            elif first.known > 64:
                sources_behind.add(node.source)
        commit_all(drafter, targets)
        check_kv(drafter)
    assert sources_behind == {Source.SUFFIX}
    assert any(source is Source.MODEL for *_, source in targets[1].proposed)
    assert short.pool.free_blocks + _held(drafter) == short.pool.total_blocks


def _held(drafter: Drafter) -> int:
    return sum(len(s.kv.blocks) for s in drafter._sequences.values() if s.kv is not None)


def test_padded_vocabularies(tmp_path) -> None:
    """Target 160 rows, drafter 128 rows, 120 real tokens."""
    target_dir = make_tiny_llama(tmp_path / "target", vocab=160, real_vocab=120)
    draft_dir = make_tiny_llama(tmp_path / "draft", vocab=128, real_vocab=120, seed=1)
    info = read_target(target_dir)
    target_runner, draft = load(target_dir), load_draft(draft_dir, info)
    assert info.vocab_size == 120 == draft.info.vocab_size
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=3)
    prompt = random_prompt(9, vocab=120)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(target_runner, prompt, 50, params))
    drafter = make_drafter(draft, info)
    drafter.handle(1, OpenSequences((opened,)))
    while not target.done:
        exchange(drafter, [target])
        commit_all(drafter, [target])
    assert target.proposed and all(token < 120 for _, token, _ in target.proposed)


class RecordingEngine(CorruptingEngine):
    """Notes the largest token id and the last position that the model was fed."""

    def __init__(self, engine: DraftEngine) -> None:
        super().__init__(engine)
        self.largest_token = self.last_position = 0

    def extend(self, batch, meanwhile):
        rows = rows_of(batch)
        self.largest_token = max(self.largest_token, *rows.tokens)
        self.last_position = max(self.last_position, *rows.positions)
        return super().extend(batch, meanwhile)

    def prefill(self, blocks, tokens, start):
        self.largest_token = max(self.largest_token, *tokens)
        self.last_position = max(self.last_position, start + len(tokens) - 1)
        self._engine.prefill(blocks, tokens, start)


def test_the_context_of_the_draft_is_used_to_its_end_and_then_given_back(
    tmp_path, directory, runner
) -> None:
    """The last row stands at position 63 of 64; afterwards no memory is held."""
    info = read_target(directory)
    short_dir = make_tiny_llama(tmp_path / "short", context=64)
    short = RecordingEngine(load_draft(short_dir, info))
    prompt = random_prompt(7, 62)
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(runner, prompt, 4, params))
    drafter = make_drafter(short, info, DraftBudget(24, 8, 0.0))
    drafter.handle(1, OpenSequences((opened,)))
    exchange(drafter, [target])  # the prompt is prefilled
    assert drafter.handle(1, Commits((target.step(),))) == []
    exchange(drafter, [target])
    assert {node.depth for node in target.tree.walk()} == {1, 2}
    assert short.last_position == 63
    assert drafter.handle(1, Commits((target.step(most=1),))) == []
    exchange(drafter, [target])
    assert target.complete and short.last_position == 63
    assert short.pool.free_blocks == short.pool.total_blocks


def test_a_draft_with_too_few_rows_is_never_fed_an_unknown_id(tmp_path) -> None:
    """The tokenizer has 140 entries, the draft only 128 rows."""
    target_dir = make_tiny_llama(tmp_path / "target", vocab=160, real_vocab=140)
    draft_dir = make_tiny_llama(tmp_path / "draft", vocab=128, real_vocab=140)
    info = read_target(target_dir)
    engine = RecordingEngine(load_draft(draft_dir, info))
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    prompt = random_prompt(9, vocab=120)
    unknown = [130, *prompt[:10], 130]
    opened = OpenSequence(1, 0, tuple(prompt), params)
    target = ScriptedTarget(opened, [*prompt, *prompt[:5], *unknown, *prompt, *prompt])
    drafter = make_drafter(engine, info)
    drafter.handle(1, OpenSequences((opened,)))
    while not target.done:
        exchange(drafter, [target])
        if 130 in target.text[: target.known]:
            assert all(node.source is Source.SUFFIX for node in target.tree.walk())
        commit_all(drafter, [target])
    assert {source for *_, source in target.proposed} == {Source.MODEL, Source.SUFFIX}
    assert 0 < engine.largest_token < 128
    assert engine.pool.free_blocks == engine.pool.total_blocks


def test_a_full_pool_costs_guesses_and_nothing_else(directory) -> None:
    """Sequences that get no blocks are answered empty; closing others brings theirs back."""
    small = load_draft(directory, read_target(directory))
    pool = small.pool
    pool.allocate(pool.free_blocks - 2 * pool.blocks_for(21 + 24))
    free = pool.free_blocks
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    opened = [open_model(index, random_prompt(index), params) for index in range(4)]
    targets = [ScriptedTarget(one, [*one.prompt, *random_prompt(20)]) for one in opened]
    drafter = make_drafter(small, read_target(directory))
    drafter.handle(1, OpenSequences(tuple(opened)))
    exchange(drafter, targets)
    assert all(target.complete for target in targets)
    assert sum(len(target.proposed) > 0 for target in targets) == 2
    for target in targets:
        if target.proposed:
            drafter.handle(1, CloseDrafts((CloseSequence(target.opened.seq_id, 0),)))
    assert pool.free_blocks == free
    waiting = [target for target in targets if not target.proposed]
    commit_all(drafter, waiting)
    exchange(drafter, waiting)
    assert all(target.proposed for target in waiting)
    drafter.end_stream(1)
    assert pool.free_blocks == free and len(drafter) == 0


class FailingEngine(CorruptingEngine):
    def extend(self, batch, meanwhile):
        raise RuntimeError("device lost")


def test_a_model_that_fails_leaves_suffix_drafting(directory, pieces, caplog) -> None:
    free = pieces.pool.free_blocks
    drafter = make_drafter(FailingEngine(pieces), read_target(directory))
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    prompt = [5, 6, 7] * 10
    opened = OpenSequence(1, 0, tuple(prompt), params)
    target = ScriptedTarget(opened, prompt + [5, 6, 7] * 20)
    drafter.handle(1, OpenSequences((opened, open_model(2, random_prompt(1), params))))
    while not target.done:
        exchange(drafter, [target])
        assert target.complete
        commit_all(drafter, [target])
    assert any(source is Source.SUFFIX for *_, source in target.proposed)
    assert pieces.pool.free_blocks == free
    assert "device lost" in caplog.text


def test_commits_between_passes_re_root_at_once(directory, runner, engine) -> None:
    """A commit that comes in while the model works: the next pass is for the new root.

    The target takes less than it could at times, so that parts of the tree live on.
    """
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    prompt = random_prompt(11)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(runner, prompt, 80, params))
    drafter = make_drafter(engine, read_target(directory))
    drafter.handle(1, OpenSequences((opened,)))
    rng = random.Random(0)
    kept = 0
    while not target.done:
        for _ in range(rng.randrange(1, 7)):
            for group in groups_of(drafter.draft()):
                target.take(group)
        assert target.first_wrong() is None
        assert drafter.handle(1, Commits((target.step(rng.choice((0, 1, None))),))) == []
        kept += bool(kv_slots(drafter))
        check_kv(drafter)
        (sequence,) = drafter._sequences.values()
        assert sequence.tree.root_id == target.tree.root_id
    assert len(target.proposed) > 20 and kept > 5


def test_what_commits_have_shown_is_learned_while_a_pass_runs(directory, engine) -> None:
    """Neither before the pass, which would keep it waiting, nor behind it."""
    left = []

    class Watching(CorruptingEngine):
        def extend(self, batch, meanwhile):
            def watched() -> None:
                left.append(len(drafter._calibration.observed))
                meanwhile()
                left.append(len(drafter._calibration.observed))

            return self._engine.extend(batch, watched)

    drafter = make_drafter(Watching(engine), read_target(directory), DraftBudget(24, 1, 0.0))
    opened = open_model(1, random_prompt(13), SamplingParams(max_tokens=100, ignore_eos=True))
    target = ScriptedTarget(opened, [*opened.prompt, *random_prompt(14, length=6)])
    drafter.handle(1, OpenSequences((opened,)))
    while not target.done:
        exchange(drafter, [target])
        commit_all(drafter, [target])
    assert left == [0, 0] + [3, 0] * 5  # three guesses for each root but the first


def test_few_messages_per_root(directory, runner, pieces) -> None:
    """Eight passes for one root go out in at most five messages."""
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    prompt = random_prompt(12)
    opened = open_model(1, prompt, params)
    target = ScriptedTarget(opened, decode(runner, prompt, 100, params))
    drafter = make_drafter(pieces, read_target(directory), DraftBudget(24, 8, 0.001))
    drafter.handle(1, OpenSequences((opened,)))
    most = 0
    while not target.done:
        answers = run_until_idle(drafter)
        most = max(most, len(answers))
        for group in groups_of(answers):
            target.take(group)
        assert target.complete
        commit_all(drafter, [target])
    assert 1 < most <= 5


def test_a_model_that_fails_leaves_no_guess_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited for its word is part of the answer all the same."""
    directory = make_tiny_llama(tmp_path, context=512)
    target = read_target(directory)
    engine = load_draft(directory, target)
    drafter = Drafter(target, Limits(4, 24, 8), ModelDrafter(engine, target))
    monkeypatch.setattr(engine, "extend", None)
    drafter.handle(1, DraftBudget(24, 8, 0.02))
    text = (5, 6, 7, 9, 11, 5)  # 6 followed 5 once, which says little
    answers = drafter.handle(1, OpenSequences((OpenSequence(1, 0, text, SamplingParams()),)))
    while drafter.busy:
        answers += drafter.draft()
    groups = [group for answer in answers for group in answer.content.batches[0].groups]
    assert groups[-1].complete and 6 in [token for group in groups for token in group.tokens]
