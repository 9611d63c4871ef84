"""Predicted beside real acceptance, from the drafter's core through the wire to the metrics."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.scripted_target import ScriptedTarget, groups_of, run_until_idle

from draft_service.answers import Answer, Drafts
from draft_service.drafter import Drafter
from foredraft.params import SamplingParams
from foredraft.v1 import draft_pb2 as pb
from foredraft.wire.codec.draft import decode_response, encode_response
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commits,
    DraftBudget,
    GuessOutcomes,
    Limits,
    ModelInfo,
    NodeBlocks,
    OpenSequence,
    OpenSequences,
    Source,
)
from gateway.metrics import Metrics
from gateway.relay_meter import RelayMeter

TARGET = ModelInfo("tiny", "hash", vocab_size=64, context_length=4000, eos_token_ids=(0,))


def count(target: ScriptedTarget, counts: Counter) -> None:
    """What the coming step makes of the nodes below the places that it commits."""
    tree = target.tree
    for place in [tree.root_id, *target.accepted()]:
        right = target.text[target.known + tree.depth(place)]
        for node in (tree.nodes[child] for child in tree.children(place)):
            tenth = min(int(10 * node.confidence), 9) / 10
            counts["guesses", str(tenth)] += 1
            counts["predicted", str(tenth)] += node.confidence
            counts["accepted", str(tenth)] += node.token == right


def told(answers: list[Answer], meter: RelayMeter) -> int:
    """Passes outcomes on as a gateway hears of them; returns in how many messages they came."""
    messages = 0
    for answer in answers:
        assert isinstance(answer.content, Drafts)
        message = NodeBlocks((), answer.content.timings, answer.content.outcomes)
        wire = pb.ProposeResponse.FromString(encode_response(message).SerializeToString())
        heard = decode_response(wire)
        assert isinstance(heard, NodeBlocks)
        meter.judged(heard.outcomes)
        messages += bool(heard.outcomes)
    return messages


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and by the values of labels in the order of their names."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        (s.name, *(s.labels[label] for label in sorted(s.labels))): s.value
        for family in families
        for s in family.samples
    }


def test_numbers_add_up_from_the_drafter_to_the_metrics() -> None:
    rng = random.Random(5)
    block = [rng.randrange(3, 20) for _ in range(40)]
    text = [token if rng.random() < 0.8 else rng.randrange(3, 20) for token in block * 12]
    opened = OpenSequence(1, 0, tuple(text[:60]), SamplingParams(max_tokens=1000))
    seconds = 0.0
    drafter = Drafter(TARGET, Limits(4, 64, 16), clock=lambda: seconds)
    drafter.handle(0, DraftBudget(64, 16, 0.02))
    drafter.handle(0, OpenSequences((opened,)))
    target = ScriptedTarget(opened, text)
    metrics, counts = Metrics(), Counter()
    meter = RelayMeter(metrics)
    steps = messages = 0
    while len(target.text) - target.known > 20:
        answers = run_until_idle(drafter)
        messages += told(answers, meter)
        for answer in answers:
            for group in answer.content.batches[0].groups:
                target.take(group)
        count(target, counts)
        drafter.handle(0, Commits((target.step(),)))
        seconds += 0.1
        steps += 1
    answers = run_until_idle(drafter)
    messages += told(answers, meter)
    for group in groups_of(answers):
        target.take(group)
    count(target, counts)
    last = target.step()  # no commit like the others: the request ends with it
    assert drafter.handle(0, CloseDrafts((CloseSequence(1, 0),), (last,))) == []
    assert len(drafter) == 0
    seconds += 2.0
    drafter.handle(0, OpenSequences((replace(opened, seq_id=2),)))
    messages += told(run_until_idle(drafter), meter)
    assert 3 < messages <= steps / 10 + 2  # one a second
    assert sum(counts.values()) > 100 and not target.orphans

    values = samples(metrics)
    for (kind, tenth), expected in counts.items():
        shown = values[f"foredraft_draft_{kind}_total", tenth, "suffix"]
        assert shown == pytest.approx(expected, rel=1e-5), (kind, tenth)
    for kind in ("guesses", "accepted"):
        by_depth = [
            v for key, v in values.items() if key[0] == f"foredraft_draft_depth_{kind}_total"
        ]
        assert len(by_depth) == 8
        assert sum(by_depth) == sum(n for key, n in counts.items() if key[0] == kind)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (GuessOutcomes(Source.MODEL, 0, 3, 2, 1.0, 1), "depths"),
        (GuessOutcomes(Source.MODEL, 9, 3, 2, 1.0, 1), "depths"),
        (GuessOutcomes(Source.MODEL, 1, 10, 2, 1.0, 1), "bins"),
        (GuessOutcomes(Source.MODEL, 1, 3, 2, 2.5, 1), "predicted"),
        (GuessOutcomes(Source.MODEL, 1, 3, 2, float("nan"), 1), "predicted"),
        (GuessOutcomes(Source.MODEL, 1, 3, 2, 1.0, 3), "accepted"),
    ],
)
def test_outcomes_that_cannot_be_are_refused(row, field) -> None:
    with pytest.raises(BadMessage) as refused:
        decode_response(encode_response(NodeBlocks((), outcomes=(row,))))
    assert refused.value.field == field


def test_outcomes_with_a_short_column_are_refused() -> None:
    wire = encode_response(NodeBlocks((), outcomes=(GuessOutcomes(Source.MODEL, 1, 3, 2, 1.0, 1),)))
    wire.nodes.outcomes.accepted.pop()
    with pytest.raises(BadMessage):
        decode_response(wire)
