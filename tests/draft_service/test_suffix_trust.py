"""Ordinary text does not pay for suffix lookups, and they come back where they pay."""

from __future__ import annotations

import random

from support.scripted_target import ScriptedTarget, commit_all, exchange

from draft_service.drafter import Drafter
from draft_service.suffix_cache import SuffixCache
from draft_service.suffix_trust import SuffixTrust
from foredraft.params import SamplingParams
from foredraft.wire.messages import Limits, ModelInfo, OpenSequence, OpenSequences


def test_failures_make_lookups_rare_and_success_brings_them_back() -> None:
    trust = SuffixTrust()
    assert trust.shortest == 1
    shortest = []
    for _ in range(200):
        trust = trust.after(0)
        shortest.append(trust.shortest)
    assert shortest[0] == 1 and sorted(set(shortest)) == [1, 2, 6]
    assert shortest[-90:].count(1) == 10  # a probe after every eight commits
    assert trust.after(8).shortest == 1


def test_noise_is_hardly_looked_up_and_a_copy_is_found_at_once(monkeypatch) -> None:
    asked = 0
    propose = SuffixCache.propose

    def counting(cache, path, width):
        nonlocal asked
        asked += 1
        return propose(cache, path, width)

    monkeypatch.setattr(SuffixCache, "propose", counting)
    rng = random.Random(6)
    block = [rng.randrange(100, 1000) for _ in range(80)]
    noise = [rng.randrange(10, 60) for _ in range(400)]
    opened = OpenSequence(1, 0, tuple(block), SamplingParams(max_tokens=1000))
    target = ScriptedTarget(opened, [*block, *noise, *block])
    drafter = Drafter(ModelInfo("t", "h", 1000, 4096, ()), Limits(1, 64, 32))
    drafter.handle(1, OpenSequences((opened,)))
    steps = {"noise": 0, "block": 0}
    while not target.done:
        exchange(drafter, [target])
        steps["noise" if target.known < len(block) + len(noise) else "block"] += 1
        if target.known < len(block) + len(noise):
            in_noise = asked
        commit_all(drafter, [target])
    assert in_noise < 0.3 * steps["noise"]
    assert steps["block"] <= 14  # of 80 tokens
