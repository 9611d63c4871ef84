"""What a gateway lets a drafter do: rest, go on, and share among sequences."""

from __future__ import annotations

from support.scripted_target import ScriptedTarget, exchange

from draft_service.drafter import Drafter
from foredraft.params import SamplingParams
from foredraft.policy.node_share import node_share
from foredraft.wire.messages import (
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
)

TARGET = ModelInfo("tiny", "hash", vocab_size=32, context_length=1000, eos_token_ids=(0,))
RESTING = DraftBudget(0, 8, 0.0)


def drafter_of(*sequences: OpenSequence, budget: DraftBudget, most_nodes: int = 20) -> Drafter:
    drafter = Drafter(TARGET, Limits(8, most_nodes, 20))
    drafter.handle(1, budget)
    drafter.handle(1, OpenSequences(sequences))
    return drafter


def opened(seq_id: int, prompt: list[int]) -> OpenSequence:
    return OpenSequence(seq_id, 0, tuple(prompt), SamplingParams(max_tokens=500))


def test_a_drafter_that_rested_goes_on_where_the_text_is_now() -> None:
    prompt = [4, 5, 6, 7] * 6
    sequence = opened(1, prompt)
    drafter = drafter_of(sequence, budget=RESTING)
    target = ScriptedTarget(sequence, prompt * 2)
    for _ in range(3):
        assert drafter.draft() == [] and not drafter.busy
        commit = target.step()
        assert commit.accepted == 0
        drafter.handle(1, Commits((commit,)))
    drafter.handle(1, DraftBudget(8, 8, 0.0))
    exchange(drafter, [target])
    assert target.complete  # without another commit: the target may be waiting for this
    assert target.step().accepted == 8


def test_several_sequences_share_what_a_step_can_take() -> None:
    prompt = [4, 5, 6, 4, 5, 7, 4, 5, 8] * 10
    for count in (1, 2, 8):
        sequences = [opened(number, prompt) for number in range(count)]
        drafter = drafter_of(*sequences, budget=DraftBudget(20, 20, 0.0))
        targets = [ScriptedTarget(sequence, prompt) for sequence in sequences]
        exchange(drafter, targets)
        assert {len(target.tree) for target in targets} == {node_share(20, count)}


def test_shares() -> None:
    assert [node_share(64, sequences) for sequences in (1, 2, 8, 32, 64)] == [64, 64, 16, 4, 3]
    assert node_share(0, 3) == 0
    assert node_share(2, 1) == 2
