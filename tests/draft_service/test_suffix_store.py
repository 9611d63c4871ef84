"""Texts of finished requests: bounded, one tenant's own, and no token changes because of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from support.scripted_target import (
    ScriptedTarget,
    commit_all,
    exchange,
    groups_of,
    run_until_idle,
)
from support.tiny_models import make_tiny_llama
from support.verify_driver import Guesser, VerifyDriver, no_guesses

from draft_service.drafter import Drafter
from draft_service.suffix_store import SLICE, TENANTS, KeptText, SuffixStore
from foredraft.config import DraftConfig, EngineConfig, StackConfig
from foredraft.engine.runner import ModelRunner
from foredraft.params import SamplingParams
from foredraft.tree.node_id import path_id
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
)

OURS, THEIRS, NOBODY = 77, 78, 0
NUMBERS = count(1)


def some_tokens(seed: int, length: int, low: int = 10, high: int = 1000) -> list[int]:
    return [random.Random(seed * 1000 + place).randrange(low, high) for place in range(length)]


def kept(store: SuffixStore, tenant: int) -> KeptText:
    while store.busy:
        store.work()
    text = store.of(tenant)
    assert text is not None
    return text


def test_what_followed_before_is_found_with_its_match() -> None:
    store = SuffixStore(1000)
    text = some_tokens(1, 300)
    store.keep(OURS, text)
    (found,) = kept(store, OURS).propose(text[80:100], 3)
    assert (found.token, found.match) == (text[100], 20)
    assert kept(store, OURS).follow(found.position + 1) == text[101]
    assert kept(store, OURS).propose([5, *text[97:100]], 3) == []  # three equal tokens are too few


def test_no_guess_reaches_from_one_request_into_the_next() -> None:
    store = SuffixStore(1000)
    first, second = some_tokens(1, 40), some_tokens(2, 40)
    store.keep(OURS, first)
    store.keep(OURS, second)
    text = kept(store, OURS)
    (last,) = text.propose(first[20:39], 3)
    assert text.follow(last.position + 1) is None
    assert text.propose(first, 3) == [] and text.propose([*first[-2:], *second[:2]], 3) == []


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    store = SuffixStore(1000)
    texts = [some_tokens(seed, 300) for seed in range(30)]
    for text in texts:
        store.keep(OURS, text)
        assert len(store) <= 1000 + 301
        line = kept(store, OURS)
        assert len(line) <= 1000
        assert len(line._newest) <= 1000 and len(line._text) <= 1500
    assert [bool(line.propose(text[:50], 1)) for text in texts] == [False] * 27 + [True] * 3


def test_tenants_that_ended_nothing_for_long_are_forgotten() -> None:
    store = SuffixStore(100)
    for tenant in range(1, 2 * TENANTS):
        store.keep(tenant, some_tokens(tenant, 20))
        store.keep(OURS, some_tokens(1, 20))
        while store.busy:
            store.work()
    known = [tenant for tenant in range(1, 2 * TENANTS) if store.of(tenant) is not None]
    assert known == list(range(2 * TENANTS - TENANTS + 1, 2 * TENANTS))
    assert store.of(OURS) is not None


def test_texts_that_wait_are_bounded_too() -> None:
    store = SuffixStore(1000)
    for seed in range(100):
        store.keep(OURS, some_tokens(seed, 400))
        assert len(store) <= 1000
    store.keep(OURS, some_tokens(1, 5000))
    assert len(store) <= 1000
    assert kept(store, OURS).propose(some_tokens(1, 5000)[-20:-1], 1)


def test_off_keeps_nothing_and_off_is_the_default() -> None:
    for store, tenant in ((SuffixStore(0), OURS), (SuffixStore(1000), NOBODY)):
        store.keep(tenant, some_tokens(1, 100))
        assert not store.busy and len(store) == 0 and store.of(tenant) is None
    assert DraftConfig("unused", Path()).suffix_store == 0
    assert StackConfig("unused", 0, Path()).suffix_store == 0


class Service:
    """A drafter with a store, and targets that are bound to become a given text."""

    def __init__(self, tokens: int) -> None:
        self.store = SuffixStore(tokens)
        self.drafter = Drafter(
            ModelInfo("t", "h", 1000, 8192, ()), Limits(4, 64, 32), store=self.store
        )

    def play(self, tenant: int, prompt: Sequence[int], text: Sequence[int]) -> tuple[int, set[int]]:
        """Answer one request and close it; returns its steps and all tokens that were guessed."""
        params = SamplingParams(max_tokens=4000)
        opened = OpenSequence(next(NUMBERS), 0, tuple(prompt), params, tenant=tenant)
        target, steps = ScriptedTarget(opened, [*prompt, *text]), 0
        self.drafter.handle(1, OpenSequences((opened,)))
        while not target.done:
            exchange(self.drafter, [target])
            commit_all(self.drafter, [target])
            steps += 1
        self.close(opened.seq_id)
        run_until_idle(self.drafter)
        return steps, {token for _, token, _ in target.proposed}

    def close(self, seq_id: int, *last: Commit) -> None:
        self.drafter.handle(1, CloseDrafts((CloseSequence(seq_id, 0),), last))


def test_a_second_request_gains_for_its_own_tenant_only() -> None:
    prompt, text = some_tokens(1, 60), some_tokens(2, 120)
    first, _ = Service(0).play(OURS, prompt, text)
    service = Service(10_000)
    assert service.play(OURS, prompt, text)[0] == first >= 110
    steps, guessed = service.play(OURS, prompt, text)
    assert steps <= 12 and guessed <= set(text)
    for stranger in (THEIRS, NOBODY):
        assert service.play(stranger, prompt, text)[0] >= 110
    assert service.play(THEIRS, prompt, text)[0] <= 12


def test_strangers_never_see_a_token_of_another_tenant() -> None:
    """Texts overlap, so that matches are there; what follows them has one tenant's own tokens."""
    service = Service(10_000)
    shared = some_tokens(3, 30, low=900)
    own = {OURS: (10, 400), THEIRS: (400, 800)}
    for turn in range(4):
        for tenant, (low, high) in own.items():
            text = [*some_tokens(turn, 20, low, high), *shared, *some_tokens(turn, 30, low, high)]
            _, guessed = service.play(tenant, shared, text)
            assert all(low <= token < high or token >= 900 for token in guessed)


def test_only_requests_that_the_gateway_closes_are_kept() -> None:
    service = Service(10_000)
    prompt = tuple(some_tokens(1, 60))
    opened = OpenSequence(1, 0, prompt, SamplingParams(max_tokens=9), tenant=OURS)
    service.drafter.handle(1, OpenSequences((opened,)))
    service.drafter.handle(1, Commits((Commit(1, 0, 7, (5,)),)))  # does not fit: given up
    service.drafter.handle(2, OpenSequences((opened,)))
    service.drafter.end_stream(2)
    assert len(service.store) == 0
    service.drafter.handle(1, OpenSequences((opened,)))
    service.close(1, Commit(1, 0, len(prompt), (5, 6)))
    assert len(service.store) == len(prompt) + 2 + 1
    run_until_idle(service.drafter)
    assert service.store.of(OURS).propose([*prompt[-4:], 5], 1)[0].token == 6


def test_a_long_text_is_indexed_between_other_pieces_of_work() -> None:
    service = Service(10_000)
    prompt = some_tokens(1, 20) * 3
    opened = OpenSequence(1, 0, tuple(prompt), SamplingParams(max_tokens=500))
    service.drafter.handle(1, OpenSequences((opened,)))
    run_until_idle(service.drafter)
    service.store.keep(OURS, some_tokens(1, 4000))
    slices = 0
    while service.store.busy:
        before = len(prompt) + slices
        service.drafter.handle(1, Commits((Commit(1, 0, before, (prompt[slices % 20],)),)))
        assert groups_of(service.drafter.draft())  # answered before a slice is done
        assert service.drafter.busy
        service.drafter.draft()
        slices += 1
    assert slices == -(-4001 // SLICE)


def guesser(drafter: Drafter, tenant: int) -> Guesser:
    """Every guess of a drafter, as continuations of a text."""

    def guesses(tokens: Sequence[int]) -> list[list[int]]:
        number = next(NUMBERS)
        opened = OpenSequence(
            number, 0, tuple(tokens), SamplingParams(max_tokens=99), tenant=tenant
        )
        drafter.handle(1, OpenSequences((opened,)))
        paths = {}
        for group in groups_of(run_until_idle(drafter)):
            paths[group.root_id] = []
            for parent, token in zip(group.parent_ids, group.tokens, strict=True):
                paths[path_id(parent, [token])] = [*paths[parent], token]
        drafter.handle(1, CloseDrafts((CloseSequence(number, 0),)))
        return [path for path in paths.values() if path]

    return guesses


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    directory = make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=128, context=256)
    return ModelRunner.load(EngineConfig(directory, dtype="float32", threads=1, kv_memory_mib=4))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_ids_are_those_of_the_plain_run(runner: ModelRunner, sampling: dict) -> None:
    prompt = some_tokens(4, 20, low=3, high=128)
    answers, accepted = [], []
    service = Service(10_000)
    for guesses in (
        no_guesses,
        guesser(Service(0).drafter, OURS),
        *[guesser(service.drafter, OURS)] * 2,
    ):
        with VerifyDriver(runner) as driver:
            driver.open(1, prompt, guesses, max_tokens=40, ignore_eos=True, **sampling)
            answer = driver.finish()[1]
        answers.append(answer.tokens)
        accepted.append(sum(commit.accepted for commit in answer.commits))
    assert answers == [answers[0]] * 4
    assert accepted[0] == 0 and accepted[3] >= 20  # the second time the store knows the answer
    assert accepted[3] > accepted[1]
