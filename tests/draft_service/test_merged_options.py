"""What the draft model and the suffix cache say about one place, together."""

from __future__ import annotations

from draft_service.expansion import grow
from draft_service.merged_options import merged
from draft_service.open_options import Option, Trail
from draft_service.sequence import DraftSequence
from foredraft.params import SamplingParams
from foredraft.policy.bucket import (
    Evidence,
    agreed_bucket,
    doubted_bucket,
    model_bucket,
    suffix_bucket,
)
from foredraft.policy.calibration import Calibration
from foredraft.wire.messages import DraftBudget, Limits, ModelInfo, OpenSequence, Source

BUDGET = DraftBudget(16, 4, 0.01)
WEAK = suffix_bucket(1, 0, Evidence.ONCE)
SURE = suffix_bucket(12, 0, Evidence.ALWAYS)
TEXT = (5, 6, 7, 5)  # 6 followed 5 once


def opened() -> DraftSequence:
    opening = OpenSequence(1, 1, TEXT, SamplingParams(max_tokens=32))
    target = ModelInfo("model", "hash", 100, 1000, (2,))
    return DraftSequence(1, opening, target, Limits(4, 16, 4), Calibration())


def children(sequence: DraftSequence) -> dict[int, Source]:
    nodes = sequence.tree.nodes
    found = [nodes[child] for child in sequence.tree.children(sequence.tree.root_id)]
    return {node.token: node.source for node in found}


def test_both_sources_make_one_list_in_which_no_token_comes_twice() -> None:
    trail = Trail(3, 8)
    model = [Option(1, model_bucket(0.6, 0)), Option(2, model_bucket(0.1, 1))]
    suffix = [Option(2, SURE, trail), Option(3, WEAK, trail)]
    assert merged([], suffix) == suffix
    assert merged(model, []) == model
    alone, both, doubted = merged(model, suffix)
    assert alone == model[0]
    assert both == Option(2, agreed_bucket(model[1].bucket, SURE), trail)
    assert doubted == Option(3, doubted_bucket(WEAK), trail)


def test_who_agrees_is_likelier_and_who_is_alone_less_likely() -> None:
    for chance, rank in ((0.02, 2), (0.4, 0), (0.97, 0)):
        bucket = model_bucket(chance, rank)
        weak, sure = (agreed_bucket(bucket, suffix).prior for suffix in (WEAK, SURE))
        assert 0.0 < bucket.prior < weak < sure < 1.0
    for bucket in (WEAK, SURE):
        assert 0.0 < doubted_bucket(bucket).prior < bucket.prior


def test_a_doubtful_guess_waits_for_the_model_and_gets_what_both_say() -> None:
    sequence = opened()
    sequence.await_model(True)
    grow(sequence, BUDGET)
    assert not sequence.tree.nodes
    root = sequence.tree.root_id
    sequence.evaluated.add(root)
    found = [Option(6, model_bucket(0.9, 0)), Option(8, model_bucket(0.05, 1))]
    sequence.note_model_options(root, found)
    grow(sequence, BUDGET)
    assert children(sequence) == {6: Source.MODEL, 8: Source.MODEL}
    first = sequence.tree.nodes[sequence.tree.children(root)[0]]
    assert first.token == 6 and first.confidence > model_bucket(0.9, 0).prior


def test_without_the_model_s_word_it_is_open_at_last() -> None:
    sequence = opened()
    sequence.await_model(True)
    grow(sequence, BUDGET)
    sequence.await_model(False)
    grow(sequence, BUDGET)
    assert children(sequence) == {6: Source.SUFFIX}
