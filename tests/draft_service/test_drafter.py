"""Suffix drafting and the book-keeping of sequences, without a model."""

from __future__ import annotations

import random

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_target import (
    ScriptedTarget,
    commit_all,
    exchange,
    groups_of,
    run_until_idle,
)

from draft_service.drafter import Drafter
from foredraft.params import SamplingParams, Speculation
from foredraft.tree.node_id import path_id, start_id
from foredraft.wire.errors import code_number
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    Nack,
    OpenSequence,
    OpenSequences,
)

EOS = 2
TARGET = ModelInfo("target", "hash", vocab_size=1000, context_length=4096, eos_token_ids=(EOS,))
LIMITS = Limits(max_sequences=4, max_nodes=64, max_depth=32)
EAGER = DraftBudget(64, 32, 0.0)  # everything that was ever found becomes a node


def make_drafter(limits: Limits = LIMITS, target: ModelInfo = TARGET) -> Drafter:
    return Drafter(target, limits)


def open_one(seq_id: int = 1, prompt=(5, 6, 7), incarnation: int = 0, **fields) -> OpenSequence:
    params = fields.pop("params", SamplingParams(max_tokens=1000))
    return OpenSequence(seq_id, incarnation, tuple(prompt), params, **fields)


def nack_codes(answers) -> list[int]:
    return [e.code for a in answers if isinstance(a.content, Nack) for e in a.content.errors]


def copy_task(seed: int = 0, length: int = 120) -> tuple[list[int], list[int]]:
    """A prompt of random tokens, and a text that says it again."""
    prompt = [random.Random(seed).randrange(10, 1000) for _ in range(length)]
    return prompt, prompt + prompt[:100]


def play(drafter: Drafter, opened: OpenSequence, text: list[int]) -> tuple[ScriptedTarget, int]:
    """Run one sequence to its end; returns the target and its number of steps."""
    target, steps = ScriptedTarget(opened, text), 0
    assert drafter.handle(1, OpenSequences((opened,))) == []
    while not target.done:
        exchange(drafter, [target])
        assert target.complete
        commit_all(drafter, [target])
        steps += 1
    return target, steps


def test_a_copy_takes_few_steps() -> None:
    prompt, text = copy_task()
    target, steps = play(make_drafter(), open_one(prompt=prompt), text)
    assert steps <= 20  # of 100 tokens
    assert not target.orphans


def test_a_replaced_name_does_not_interrupt_a_copy() -> None:
    """Behind a token that is new there, the text goes on as it did behind the one it replaced."""
    prompt, text = copy_task()
    for place in range(length := len(prompt), len(text), 12):
        text[place + 7 : place + 8] = [999 - (place - length)]
    _, steps = play(make_drafter(), open_one(prompt=prompt), text)
    assert steps <= 24  # of 100 tokens; 27 without such guesses


def test_random_text_gets_few_guesses() -> None:
    rng = random.Random(3)
    prompt = [rng.randrange(10, 40) for _ in range(200)]
    text = prompt + [rng.randrange(10, 40) for _ in range(300)]
    target, steps = play(make_drafter(), open_one(prompt=prompt), text)
    assert len(target.proposed) < 3 * steps


def test_trust_is_lost_and_won_again() -> None:
    """A text that repeats itself after a long stretch of noise still gets its chains."""
    rng = random.Random(4)
    noise = [rng.randrange(10, 20) for _ in range(400)]
    block = [rng.randrange(100, 1000) for _ in range(60)]
    prompt = [*block, *noise[:100]]
    text = prompt + noise[100:] + block
    target = ScriptedTarget(open_one(prompt=prompt), text)
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((target.opened,)))
    steps_in_block = 0
    while not target.done:
        exchange(drafter, [target])
        commit_all(drafter, [target])
        steps_in_block += target.known > len(text) - len(block)
    assert steps_in_block <= 20


@given(st.lists(st.integers(3, 6), min_size=1, max_size=40), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_guesses_occur_in_the_sequence_itself(prompt: list[int], seed: int) -> None:
    """With another sequence open, nothing of its text is ever proposed."""
    drafter = make_drafter()
    rng = random.Random(seed)
    other = open_one(1, [rng.randrange(500, 1000) for _ in range(300)] * 2)
    drafter.handle(1, EAGER)
    drafter.handle(1, OpenSequences((other, open_one(2, prompt))))
    text = prompt + [rng.randrange(3, 7) for _ in range(10)]
    target = ScriptedTarget(open_one(2, prompt), text)
    while not target.done:
        exchange(drafter, [target])
        known = set(text[: target.known])
        assert all(node.token in known for node in target.tree.walk())
        commit_all(drafter, [target])


def test_a_used_server_copies_as_well_as_a_fresh_one() -> None:
    """The text of an earlier request on the same slot leaves nothing behind."""
    prompt, text = copy_task(seed=1)
    _, fresh_steps = play(make_drafter(), open_one(prompt=prompt), text)
    used = make_drafter()
    long_prompt, long_text = copy_task(seed=2, length=2000)
    play(used, open_one(prompt=long_prompt), long_text)
    target, used_steps = play(used, open_one(prompt=prompt, incarnation=1), text)
    assert used_steps <= fresh_steps
    assert {token for _, token, _ in target.proposed} <= set(prompt)


def test_a_prompt_of_one_token_is_answered_with_nothing() -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((open_one(prompt=[9]),)))
    (group,) = groups_of(run_until_idle(drafter))
    assert group.complete and group.tokens == ()
    assert group.root_id == path_id(start_id(1, 0), [9])


@pytest.mark.parametrize("speculation", [Speculation.OFF, Speculation.MODEL])
def test_without_a_source_the_answer_is_empty_but_there(speculation: Speculation) -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((open_one(prompt=[4, 5] * 20, speculation=speculation),)))
    (group,) = groups_of(run_until_idle(drafter))
    assert group.complete and group.tokens == ()


def test_nothing_is_drafted_twice_for_one_root() -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((open_one(prompt=[4, 5, 6] * 20),)))
    assert len(groups_of(run_until_idle(drafter))) == 1
    assert not drafter.busy and drafter.draft() == []


def test_several_verify_workers_get_a_batch_each() -> None:
    drafter = make_drafter()
    opens = (open_one(1, verify_worker=3), open_one(2), open_one(3, verify_worker=3))
    drafter.handle(1, OpenSequences(opens))
    (answer,) = run_until_idle(drafter)
    batches = answer.content.batches
    assert {w: [g.seq_id for g in b.groups] for w, b in batches.items()} == {3: [1, 3], 0: [2]}


def test_siblings_are_never_likelier_than_certain_together() -> None:
    drafter = make_drafter()
    drafter.handle(1, EAGER)
    prompt = [4, 5, 6, 9, 4, 5, 7, 9, 4, 5, 8, 9, 4, 5]
    opened = open_one(prompt=prompt)
    target = ScriptedTarget(opened, [*prompt, 6])
    drafter.handle(1, OpenSequences((opened,)))
    exchange(drafter, [target])
    assert len(target.tree.root.children) > 1
    for parent in [target.tree.root_id, *target.tree.nodes]:
        children = [target.tree.nodes[child] for child in target.tree.children(parent)]
        assert sum(child.confidence for child in children) <= 1.0 + 1e-6


def test_a_repetition_is_followed_past_the_end_of_the_text() -> None:
    drafter = make_drafter()
    prompt = [4, 5, 6] * 12
    _, steps = play(drafter, open_one(prompt=prompt), prompt + [4, 5, 6] * 60)
    assert steps <= 20  # of 180 tokens


def test_nothing_stands_below_an_end() -> None:
    for params in (
        SamplingParams(max_tokens=100),
        SamplingParams(max_tokens=100, stop_token_ids=(8,), ignore_eos=True),
    ):
        end = 8 if params.ignore_eos else EOS
        prompt = [4, 5, end, 6, 7] * 10 + [4]
        drafter = make_drafter()
        drafter.handle(1, EAGER)
        opened = open_one(prompt=prompt, params=params)
        target = ScriptedTarget(opened, [*prompt, 5, 9])
        drafter.handle(1, OpenSequences((opened,)))
        exchange(drafter, [target])
        ends = [node for node in target.tree.walk() if node.token == end]
        assert ends and all(not node.children for node in ends)
        commit_all(drafter, [target])  # the target refuses the end: drafting goes on
        exchange(drafter, [target])
        assert target.complete


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_no_guess_behind_max_tokens(max_tokens: int) -> None:
    """The deepest useful guess leaves the last token to the target."""
    prompt = [4, 5, 6] * 20
    opened = open_one(prompt=prompt, params=SamplingParams(max_tokens=max_tokens))
    drafter = make_drafter()
    drafter.handle(1, EAGER)
    drafter.handle(1, OpenSequences((opened,)))
    target = ScriptedTarget(opened, prompt + [4, 5, 6] * 20)
    exchange(drafter, [target])
    depths = [node.depth for node in target.tree.walk()]
    assert max(depths, default=0) == max_tokens - 1


def test_no_guess_behind_the_context_of_the_target() -> None:
    prompt = [4, 5, 6] * 20
    target_info = ModelInfo("t", "h", 1000, context_length=len(prompt) + 6, eos_token_ids=())
    drafter = make_drafter(target=target_info)
    drafter.handle(1, EAGER)
    drafter.handle(1, OpenSequences((open_one(prompt=prompt),)))
    target = ScriptedTarget(open_one(prompt=prompt), prompt + [4, 5, 6] * 2)
    exchange(drafter, [target])
    assert max(node.depth for node in target.tree.walk()) == 5


def test_bounds_of_config_and_budget() -> None:
    prompt = [4, 5, 6, 4, 5, 7, 4, 5, 8] * 10
    for budget, nodes, depth in (
        (DraftBudget(1000, 1000, 0.0), 20, 6),
        (DraftBudget(7, 1000, 0.0), 7, 6),
        (DraftBudget(1000, 3, 0.0), 20, 3),
        (DraftBudget(0, 3, 0.0), 0, 0),
    ):
        drafter = make_drafter(Limits(4, 20, 6))
        drafter.handle(1, budget)
        drafter.handle(1, OpenSequences((open_one(prompt=prompt),)))
        target = ScriptedTarget(open_one(prompt=prompt), prompt)
        exchange(drafter, [target])
        assert len(target.tree) <= nodes
        assert max((n.depth for n in target.tree.walk()), default=0) == depth
        assert target.complete == (nodes > 0)  # a drafter that is told to rest says nothing


def test_known_commits_are_ignored_and_overlapping_ones_continue() -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((open_one(prompt=[4, 5]),)))
    run_until_idle(drafter)
    assert drafter.handle(1, Commits((Commit(1, 0, 2, (6, 7)),))) == []
    run_until_idle(drafter)
    for again in ((6, 7), (6,), (7,)):
        position = 3 if again == (7,) else 2
        assert drafter.handle(1, Commits((Commit(1, 0, position, again),))) == []
        assert not drafter.busy
    drafter.handle(1, Commits((Commit(1, 0, 3, (7, 8)),)))
    (group,) = groups_of(run_until_idle(drafter))
    assert group.root_id == path_id(start_id(1, 0), [4, 5, 6, 7, 8])


@pytest.mark.parametrize("commit", [Commit(1, 0, 3, (6,)), Commit(1, 0, 1, (9, 9))])
def test_a_gap_or_a_contradiction_is_refused_and_re_opening_heals_it(commit: Commit) -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((open_one(1, [4, 5]), open_one(2, [4, 5]))))
    run_until_idle(drafter)
    answers = drafter.handle(1, Commits((commit, Commit(2, 0, 2, (6,)))))
    assert nack_codes(answers) == [code_number(grpc.StatusCode.FAILED_PRECONDITION)]
    assert [g.seq_id for g in groups_of(run_until_idle(drafter))] == [2]
    assert drafter.handle(1, Commits((Commit(1, 0, 4, (6,)),))) == []  # one Nack is enough
    drafter.handle(1, OpenSequences((open_one(1, [4, 5], committed=(8, 6)),)))
    (group,) = groups_of(run_until_idle(drafter))
    assert group.root_id == path_id(start_id(1, 0), [4, 5, 8, 6])


def test_incarnations() -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences((open_one(prompt=[4, 5], incarnation=2),)))
    drafter.handle(1, OpenSequences((open_one(prompt=[6, 7], incarnation=1),)))  # late
    (group,) = groups_of(run_until_idle(drafter))
    assert group.incarnation == 2
    drafter.handle(1, Commits((Commit(1, 1, 2, (9,)),)))
    drafter.handle(1, CloseDrafts((CloseSequence(1, 1),)))
    assert not drafter.busy and len(drafter) == 1
    drafter.handle(1, OpenSequences((open_one(prompt=[6, 7], incarnation=3),)))
    (group,) = groups_of(run_until_idle(drafter))
    assert group.root_id == path_id(start_id(1, 3), [6, 7]) and len(drafter) == 1
    drafter.handle(1, CloseDrafts((CloseSequence(1, 3),)))
    assert len(drafter) == 0


def test_refusals_name_what_is_allowed_and_hit_one_sequence_only() -> None:
    drafter = make_drafter()
    answers = drafter.handle(1, OpenSequences((open_one(1, [1000]), open_one(2))))
    (error,) = answers[0].content.errors
    assert error.seq_id == 1 and "0 to 999" in error.message
    assert nack_codes(answers) == [code_number(grpc.StatusCode.INVALID_ARGUMENT)]
    assert len(drafter) == 1
    answers = drafter.handle(1, Commits((Commit(2, 0, 3, (1000,)),)))
    assert nack_codes(answers) == [code_number(grpc.StatusCode.INVALID_ARGUMENT)]
    assert len(drafter) == 0


def test_max_sequences_counts_all_streams() -> None:
    drafter = make_drafter()
    drafter.handle(1, OpenSequences(tuple(open_one(i) for i in range(3))))
    answers = drafter.handle(2, OpenSequences((open_one(0), open_one(1))))
    assert nack_codes(answers) == [code_number(grpc.StatusCode.RESOURCE_EXHAUSTED)]
    assert "max_sequences is 4" in answers[0].content.errors[0].message
    assert drafter.handle(1, OpenSequences((open_one(2, incarnation=1),))) == []  # replaced
    drafter.end_stream(1)
    assert len(drafter) == 1
    assert drafter.handle(2, OpenSequences((open_one(1),))) == []


def test_orphans_are_sent_again_with_their_subtree() -> None:
    drafter = make_drafter()
    prompt = [4, 5, 6, 7] * 10
    opened = open_one(prompt=prompt)
    drafter.handle(1, OpenSequences((opened,)))
    lost = groups_of(run_until_idle(drafter))
    target = ScriptedTarget(opened, prompt + [4, 5, 6, 7] * 10)
    commit = Commit(1, 0, len(prompt), (4,))
    target.known += 1
    target.tree.advance([4])
    assert lost and len(target.tree) == 0
    drafter.handle(1, Commits((commit,)))
    exchange(drafter, [target])
    assert target.orphans  # the new nodes hang below ones that were lost
    commit_all(drafter, [target])
    exchange(drafter, [target])
    assert not target.orphans and len(target.accepted()) > 1
    missing = path_id(target.tree.root_id, [99])
    drafter.handle(1, Commits((Commit(1, 0, target.known, (), orphans=(missing,)),)))
    assert not drafter.busy  # nothing of ours


def test_orphans_without_new_tokens_are_answered_too() -> None:
    drafter = make_drafter()
    prompt = [4, 5, 6, 7] * 10
    drafter.handle(1, OpenSequences((open_one(prompt=prompt),)))
    (first,) = groups_of(run_until_idle(drafter))
    orphan = path_id(first.root_id, [4, 5])
    drafter.handle(1, Commits((Commit(1, 0, len(prompt), (), orphans=(orphan,)),)))
    (again,) = groups_of(run_until_idle(drafter))
    assert again.complete and again.tokens == first.tokens


def test_budget_of_one_stream_leaves_others_alone() -> None:
    drafter = make_drafter()
    drafter.handle(1, DraftBudget(0, 0, 1.0))
    prompt = [4, 5, 6] * 10
    drafter.handle(1, OpenSequences((open_one(prompt=prompt),)))
    drafter.handle(2, OpenSequences((open_one(prompt=prompt),)))
    sizes = {a.stream: len(groups_of([a])[0].tokens) for a in run_until_idle(drafter)}
    assert sizes.keys() == {2} and sizes[2] > 0
