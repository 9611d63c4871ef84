"""At the gateway: where an answer ends inside a commit, and what counts."""

from __future__ import annotations

import pytest

from foredraft.params import FinishReason, SamplingParams, Speculation
from foredraft.wire.messages import Commit, TokenLogprobs
from gateway.plan import Plan
from gateway.request import Request
from gateway.trace import start_trace


def decode(ids):
    return bytes(ids).decode("utf-8", "replace")


def make_request(max_tokens=100, stops=(), logprobs=None):
    params = SamplingParams(max_tokens=max_tokens, seed=5, logprobs=logprobs)
    plan = Plan((1, 2, 3), params, tuple(stops), Speculation.AUTO)
    return Request(1, 1, plan, decode, start_trace(None))


def commit(request, text, finish=None, **fields):
    tokens = tuple(text.encode())
    message = Commit(1, 1, request.journal.position, tokens, finish=finish, **fields)
    assert request.journal.append(message.position, tokens)
    request.deliver(message)


async def answer(request):
    return request.result(await request.news(), "tiny")


@pytest.mark.asyncio
@pytest.mark.parametrize("kept", range(6))
async def test_end_of_sequence_inside_a_commit(kept):
    """The target drops EOS and what follows; the gateway delivers and counts the rest."""
    request = make_request()
    commit(request, "abcde"[:kept], FinishReason.STOP, accepted=kept, hit=False, verified=5)
    result = await answer(request)
    assert result.finish_reason == "stop" and result.text == "abcde"[:kept]
    assert result.stats.completion_tokens == len(result.token_ids) == kept
    assert result.stats.accepted_by_depth == [1] * kept
    assert result.stats.tokens_per_step == kept


@pytest.mark.asyncio
async def test_a_prompt_that_another_target_finds_cached_counts_once():
    request = make_request()
    commit(request, "a", cached=2)
    request.begin_anew()
    commit(request, "b", FinishReason.STOP, cached=3)
    assert (await answer(request)).stats.cached_tokens == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("max_tokens", range(1, 13))
async def test_budget_is_never_overrun(max_tokens):
    request = make_request(max_tokens)
    while not request.ended:
        commit(request, "abcdef", accepted=5)
    result = await answer(request)
    assert len(result.token_ids) == max_tokens and result.finish_reason == "length"
    assert result.text == ("abcdef" * 2)[:max_tokens]


@pytest.mark.asyncio
async def test_stop_string_before_the_budget_inside_one_commit():
    request = make_request(max_tokens=5, stops=["#"])
    commit(request, "ab#de", FinishReason.LENGTH, accepted=4)
    result = await answer(request)
    assert (result.text, result.finish_reason) == ("ab", "stop")
    assert bytes(result.token_ids) == b"ab#"
    assert result.stats.accepted_by_depth == [1, 1, 1]


@pytest.mark.asyncio
async def test_budget_before_the_stop_string():
    request = make_request(max_tokens=2, stops=["#"])
    commit(request, "ab#de")
    result = await answer(request)
    assert (result.text, result.finish_reason) == ("ab", "length")


@pytest.mark.asyncio
async def test_figures_add_up():
    request = make_request(stops=["#"])
    commit(request, "abc", accepted=2, hit=True, verified=6)
    commit(request, "d", accepted=0, hit=False, verified=6)
    commit(request, "ef#gh", accepted=4, hit=True, verified=6)
    stats = (await answer(request)).stats
    assert (stats.steps, stats.hit_steps, stats.verified_nodes) == (3, 2, 18)
    assert stats.completion_tokens == 7 and stats.tokens_per_step == pytest.approx(7 / 3)
    assert stats.accepted_by_depth == [2, 2, 1]
    assert stats.prompt_tokens == 3


@pytest.mark.asyncio
async def test_figures_before_the_first_step():
    request = make_request()
    request.finish = FinishReason.CANCELLED
    request.fail(RuntimeError("not raised: the request has ended"))
    stats = request._tally.stats()
    assert (stats.steps, stats.tokens_per_step, stats.accepted_by_depth) == (0, 0.0, [])


@pytest.mark.asyncio
async def test_log_probabilities_follow_the_tokens():
    request = make_request(stops=["c"], logprobs=1)
    entries = tuple(TokenLogprobs(-float(i), (7,), (-0.5,)) for i in range(5))
    commit(request, "abcde", logprobs=entries)
    result = await answer(request)
    assert [entry.logprob for entry in result.logprobs] == [0.0, -1.0, -2.0]
    assert [entry.token_id for entry in result.logprobs] == result.token_ids
    assert result.logprobs[0].top[0].token_id == 7


@pytest.mark.asyncio
async def test_a_slow_reader_gets_larger_deltas():
    request = make_request()
    for _ in range(3):
        commit(request, "ab")
    delta = await request.news()
    assert delta.text == "ababab" and len(delta.token_ids) == 6 and delta.logprobs is None


@pytest.mark.asyncio
async def test_what_came_before_an_error_is_delivered():
    request = make_request()
    commit(request, "ab")
    request.fail(ValueError("lost"))
    assert (await request.news()).text == "ab"
    with pytest.raises(ValueError, match="lost"):
        await request.news()


def test_journal_takes_every_position_once():
    request = make_request()
    assert request.journal.append(3, (7, 8))
    assert not request.journal.append(3, (7, 8))
    assert not request.journal.append(6, (9,))
    assert request.opening().committed == (7, 8)
