"""The verify service with its steps on the device says what it says with steps of the host.

The model is tiny, in FP8, by its references. Interpreted, a step takes some tenths of a second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.drafters import always_wrong, half_right, prophet, wild
from support.short_memory import ShortMemory, blocks
from support.tiny_models import make_tiny_llama
from support.verify_driver import Answer, Guesser, VerifyDriver, no_guesses

from foredraft.config import EngineConfig
from foredraft.engine.fp8.inputs import Inputs
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.kv import BLOCK
from foredraft.params import Schedule
from foredraft.policy.cost import StepCost
from foredraft.wire.messages import Limits, VerifyBudget
from verify_service import device_profile, reservations
from verify_service.device_steps import DeviceSteps
from verify_service.reservations import Reservations
from verify_service.sequence import VerifySequence

VOCAB, CONTEXT = 64, 192
LIMITS = {"max_nodes": 8, "max_sequences": 2, "max_depth": 4}
RANDOM = random.Random(7)
PROMPTS = [RANDOM.choices(range(3, VOCAB), k=length) for length in (3, 66, 5)]
MIXED: list[dict[str, object]] = [
    {"max_tokens": 7, "ignore_eos": True},
    {"max_tokens": 6, "temperature": 0.9, "presence_penalty": 1.0, "seed": 5, "ignore_eos": True},
    {
        "max_tokens": 3,
        "temperature": 1.0,
        "top_k": 20,
        "seed": 2,
        "logprobs": 2,
        "score_prompt": True,
    },
]
PLAIN = VerifyBudget(0, 0, drafting=False)


class Watched(DeviceSteps):
    """Notes how many steps ran when one was started."""

    def start(self, ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost) -> int:
        self.ran = [*getattr(self, "ran", ()), len(self._running)]
        return super().start(ready, max_nodes, cost)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Fp8Runner:
    sizes = {"layers": 1, "hidden": 64, "vocab": VOCAB, "context": CONTEXT}
    directory = make_tiny_llama(tmp_path_factory.mktemp("model"), **sizes, tie=False)
    return Fp8Runner.load(EngineConfig(directory, dtype="fp8", kv_memory_mib=1))


def said(driver: VerifyDriver, guessers: Sequence[Guesser]) -> list[Answer]:
    with driver:
        for index, (params, guesser) in enumerate(zip(MIXED, guessers, strict=True)):
            driver.open(index, PROMPTS[index], guesser, **params)
        answers = driver.finish()
    return [answers[index] for index in range(len(MIXED))]


def test_guesses_right_and_wrong_change_no_token(runner: Fp8Runner) -> None:
    """Greedy, penalized and filtered; one waits for the others, and asks for log-probabilities."""
    plain = said(VerifyDriver(runner, **LIMITS), [no_guesses] * len(MIXED))
    texts = [[*prompt, *answer.tokens] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    guessers = [
        prophet(texts[0], 4),
        half_right(texts[1], 3, VOCAB),
        always_wrong(texts[2], 2, VOCAB),
    ]
    found = said(VerifyDriver(runner, **LIMITS, make_steps=DeviceSteps), guessers)
    for expected, answer in zip(plain, found, strict=True):
        assert (answer.tokens, answer.finish) == (expected.tokens, expected.finish)
        assert answer.commits[0].prompt == expected.commits[0].prompt
        assert [entry for commit in answer.commits for entry in commit.logprobs] == [
            entry for commit in expected.commits for entry in commit.logprobs
        ]
    assert [len(found[0].commits), len(found[2].commits)] == [2, 3]
    assert sum(commit.accepted for answer in found for commit in answer.commits) > 5
    assert runner.kv.free_blocks == runner.kv.total_blocks


def test_steps_run_ahead_where_nothing_is_waited_for(runner: Fp8Runner) -> None:
    """One is cancelled while a step of it runs; who comes next, to go on from a journal, has its
    slot, and its memory."""
    sampled = {"max_tokens": 7, "temperature": 0.7, "seed": 1, "frequency_penalty": 0.5}
    with VerifyDriver(runner) as plain:
        plain.open(0, PROMPTS[0], max_tokens=6, ignore_eos=True)
        plain.open(2, PROMPTS[2], **sampled, ignore_eos=True)
        expected = {index: answer.tokens for index, answer in plain.finish().items()}
    journal = expected[2][:2]
    made: list[Watched] = []

    def watched(*arguments: Any) -> Watched:
        made.append(Watched(*arguments))
        return made[0]

    driver = ShortMemory(runner, **LIMITS, make_steps=watched)
    driver.send(PLAIN)
    driver.open(0, PROMPTS[0], max_tokens=6, ignore_eos=True)
    driver.open(1, PROMPTS[1], max_tokens=50, ignore_eos=True)
    driver.open(2, PROMPTS[2], **sampled, ignore_eos=True, committed=journal)
    for _ in range(4):
        driver.turn()
    driver.close(1)
    driver.finish_here()
    assert driver.answers[0].tokens == expected[0]
    assert [*journal, *driver.answers[2].tokens] == expected[2]
    assert made[0].ran.count(1) > 3
    driver.scheduler.reservations.forget_prefixes()
    assert runner.kv.free_blocks == runner.kv.total_blocks


def test_who_loses_its_memory_says_the_same(
    runner: Fp8Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What steps that run may still commit needs memory, too."""
    monkeypatch.setattr(reservations, "_SOON", 0)
    params = {"max_tokens": 5, "ignore_eos": True}
    prompts = [PROMPTS[1][:62], PROMPTS[1][2:64]]
    with VerifyDriver(runner) as plain:
        for index, prompt in enumerate(prompts):
            plain.open(index, prompt, **params)
        expected = {index: answer.tokens for index, answer in plain.finish().items()}
    with blocks(runner, 12):
        driver = ShortMemory(runner, **LIMITS, make_steps=DeviceSteps)
        driver.send(PLAIN)
        for index, prompt in enumerate(prompts):
            driver.open(index, prompt, **params)
        driver.finish_here()
        driver.scheduler.reservations.forget_prefixes()
    assert [victim.seq_id for victim in driver.victims] == [1]
    assert {index: answer.tokens for index, answer in driver.answers.items()} == expected


def test_numbers_that_are_not_finite_end_their_sequence_only(runner: Fp8Runner) -> None:
    params = {"max_tokens": 2, "ignore_eos": True}
    with VerifyDriver(runner) as plain:
        plain.open(0, PROMPTS[0], **params)
        expected = plain.finish()[0].tokens
    embedding, broken = runner._model.weights.embedding, 63
    assert broken not in (*PROMPTS[0], *expected)
    before = embedding[broken].clone()
    with torch.inference_mode():
        embedding[broken] = float("nan")
    with VerifyDriver(runner, **LIMITS, make_steps=DeviceSteps) as driver:
        driver.send(PLAIN)
        driver.open(0, PROMPTS[0], **params)
        driver.open(1, [5, broken], **params)
        answers = driver.finish()
    with torch.inference_mode():
        embedding[broken] = before
    assert answers[0].tokens == expected
    assert answers[1].error is not None and "not finite" in answers[1].error.message


def test_the_smallest_service_is_warmed_and_timed(
    runner: Fp8Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_profile, "_ROUNDS", 1)
    limits = Limits(max_sequences=1, max_nodes=2, max_depth=1)
    cost = DeviceSteps(runner, Reservations(runner), limits).warm()
    assert cost.rows == (1, 2, 3)
    assert list(cost.milliseconds) == sorted(cost.milliseconds)
    assert runner.kv.free_blocks == runner.kv.total_blocks


def test_chunks_of_a_prompt_are_the_same_in_a_graph(runner: Fp8Runner) -> None:
    """On a GPU; elsewhere they are in none."""
    blocks = [runner.kv.allocate(8) for _ in range(3)]
    prompt = PROMPTS[1][: 3 * BLOCK]
    inputs = Inputs.empty(1, runner.chunk, len(blocks[0]), runner._device)
    with torch.inference_mode():
        inputs.fill_chunk(blocks[0], prompt, 0)
        expected = runner._model.chunk(inputs)[: len(prompt)].clone()
    entries = runner._memory.memory.codes.view(torch.uint8)
    for own in blocks[1:]:
        scored = runner.prefill_scored(own, prompt, 0)
        assert torch.equal(scored, runner._model.chunk_logits(expected))
        assert torch.equal(entries[:, :, :, own[:3]], entries[:, :, :, blocks[0][:3]])
    for own in blocks:
        runner.scrub(own)
        runner.kv.free(own)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_when_it_comes(runner: Fp8Runner, seed: int) -> None:
    """Guesses of all kinds, early and late, in all ways of running steps; cancels, preemptions."""
    rng = random.Random(seed)
    cells = [random_cell(rng) for _ in range(6)]
    with VerifyDriver(runner) as plain:
        for index, (prompt, params) in enumerate(cells):
            plain.open(index, prompt, **params)
        expected = {index: answer.tokens for index, answer in plain.finish().items()}
    driver = ShortMemory(runner, max_nodes=8, max_sequences=4, max_depth=4, make_steps=DeviceSteps)
    waiting = list(range(len(cells)))
    while waiting or not all(answer.done for answer in driver.answers.values()):
        if waiting and rng.random() < 0.4:
            index = waiting.pop(0)
            prompt, params = cells[index]
            text = [*prompt, *expected[index]]
            journal = expected[index][: rng.choice((0, 0, 2))]
            if len(journal) < len(expected[index]):
                guesser = rng.choice(
                    [half_right(text, 3, VOCAB, seed), prophet(text, 4), wild(3, VOCAB, seed)]
                )
                driver.open(index, prompt, guesser, committed=journal, **params)
        if rng.random() < 0.3:
            schedule = rng.choice((Schedule.SERIAL, Schedule.HELD, Schedule.FREE))
            nodes, hold_us = rng.choice((0, 3, 8)), rng.choice((0, 500))
            driver.send(VerifyBudget(nodes, hold_us, rng.random() < 0.8, schedule))
        live = [i for i, answer in driver.answers.items() if not answer.done]
        if live and rng.random() < 0.05:
            driver.close(rng.choice(live))
        if driver.running and rng.random() < 0.1:
            driver.loop._settle()
            driver.hear()
            if driver.running:
                driver.scheduler.preempt()
        if any(not answer.done for answer in driver.answers.values()):
            driver.turn()
    for index, answer in driver.answers.items():
        assert [*driver._opened[index].committed, *answer.tokens] == expected[index], index
    driver.scheduler.close_stream(0)  # those of which only the inbox knows that they are cancelled
    driver.scheduler.reservations.forget_prefixes()
    assert runner.kv.free_blocks == runner.kv.total_blocks


def random_cell(rng: random.Random) -> tuple[list[int], dict[str, object]]:
    prompt = rng.choices(range(3, VOCAB), k=rng.choice((1, 3, 20, 62, 66, 130)))
    params: dict[str, object] = {"max_tokens": rng.randrange(1, 14), "seed": rng.randrange(99)}
    params["temperature"] = rng.choice((0.0, 0.8))
    if rng.random() < 0.3:
        params["repetition_penalty"] = 1.2
    if rng.random() < 0.3:
        params["min_p"] = 0.05
    if rng.random() < 0.3:
        params["stop_token_ids"] = tuple(rng.sample(range(3, VOCAB), 4))
    if rng.random() < 0.3:
        params["logprobs"] = 1
    return prompt, params
