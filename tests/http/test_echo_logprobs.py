"""Log-probabilities of the prompt's own tokens, as harnesses that compare texts ask for them."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes import until
from support.http_door import MODEL, door

from foredraft.wire.messages import PromptLogprobs, TokenLogprobs


@pytest.fixture
def scores(words):
    """Of "abc": of the second and the third token."""
    a, b = words.ids("ab")
    return PromptLogprobs((-0.5, -2.5), (b, a, a, b), (-0.5, -1.0, -0.25, -1.5))


@pytest.fixture
def rounds(words, scores):
    entry = TokenLogprobs(-0.75, words.ids("xy"), (-0.75, -1.25))
    first = words.say("x", logprobs=(entry,), prompt=scores)
    return [first, words.end("x", logprobs=(entry,))]


EXPECTED = {
    "tokens": ["a", "b", "c", "x", "x"],
    "token_logprobs": [None, -0.5, -2.5, -0.75, -0.75],
    "top_logprobs": [
        None,
        {"b": -0.5, "a": -1.0},
        {"a": -0.25, "b": -1.5, "c": -2.5},
        {"x": -0.75, "y": -1.25},
        {"x": -0.75, "y": -1.25},
    ],
    "text_offset": [0, 1, 2, 3, 4],
}


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_choice_scores_for_all(model, words, rounds, stream):
    """Two prompts with two choices each."""
    async with door(model, rounds) as at:
        answer = await at.client.completions.create(
            model=MODEL,
            prompt=["abc", list(words.ids("abc"))],
            echo=True,
            logprobs=2,
            n=2,
            stream=stream,
        )
        texts = [""] * 4
        columns = [{name: [] for name in EXPECTED} for _ in texts]
        for part in [part async for part in answer] if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
                for name, values in (
                    choice.logprobs or {}
                ) and choice.logprobs.model_dump().items():
                    columns[choice.index][name] += values
        assert texts == ["abcxx"] * 4
        assert columns == [EXPECTED] * 4
        assert [opened.score_prompt for opened in at.verify.opened] == [True, False, True, False]


@pytest.mark.asyncio
async def test_a_later_choice_waits_for_the_first_ones_scores(model, words, scores):
    async with door(model) as at:
        asking = asyncio.create_task(
            at.client.completions.create(
                model=MODEL, prompt="abc", echo=True, logprobs=2, n=2, stream=True
            )
        )
        await until(lambda: len(at.verify.opened) == 2)
        first, second = (opened.seq_id for opened in at.verify.opened)
        at.verify.commit(second, words.end("x"))
        at.verify.commit(first, words.end("x", prompt=scores))
        texts = ["", ""]
        async for event in await asking:
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert texts == ["abcx", "abcx"]


@pytest.mark.asyncio
@pytest.mark.parametrize("asked", [{"echo": True}, {"logprobs": 2}])
async def test_nothing_is_scored_unasked(model, rounds, asked):
    async with door(model, rounds) as at:
        await at.client.completions.create(model=MODEL, prompt="abc", **asked)
        assert not at.verify.opened[0].score_prompt


@pytest.mark.asyncio
async def test_a_continuation_is_summed_as_a_harness_does(model, words, rounds):
    """Context "a", continuation "bc"; the token that is made after them is left out."""
    body = {
        "model": MODEL,
        "prompt": [list(words.ids("abc"))],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    async with door(model, rounds) as at, at.http.post("/v1/completions", json=body) as response:
        [choice] = (await response.json())["choices"]
        values = choice["logprobs"]["token_logprobs"][1:-1]
        best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][1:-1]]
        assert (sum(values), best) == (-3.0, [-0.5, -0.25])


@pytest.mark.asyncio
async def test_more_than_one_message_holds_is_refused(model, monkeypatch):
    monkeypatch.setattr("gateway.plan.MAX_PROMPT_LOGPROBS", 8)
    body = {"model": MODEL, "prompt": "abc", "logprobs": 1, "echo": True}
    async with door(model) as at:
        for more in ({"logprobs": 2}, {"prompt": ["abc", "d"], "n": 2}):
            async with at.http.post("/v1/completions", json=body | more) as response:
                error = (await response.json())["error"]
                assert (response.status, error["param"]) == (400, "logprobs"), error
        assert not at.verify.opened
