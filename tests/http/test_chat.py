"""Chats as OpenAI's own client sees them."""

from __future__ import annotations

import pytest
from support.http_door import MODEL, door

from foredraft.wire.messages import TokenLogprobs

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.asyncio
async def test_an_answer(model, words):
    async with door(model, [words.say("hi "), words.end("you")]) as at:
        answer = await at.client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": [{"type": "text", "text": "be"}] * 2},
                {"role": "user", "content": "hello"},
            ],
            n=2,
            seed=3,
            max_completion_tokens=50,
            extra_body={"top_k": 4},
        )
        for index, choice in enumerate(answer.choices):
            assert choice.index == index
            assert (choice.message.role, choice.message.content) == ("assistant", "hi you")
            assert (choice.finish_reason, choice.logprobs) == ("stop", None)
            assert at.verify.opened[index].choice == index
        assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
        prompt = at.verify.opened[0].prompt
        assert prompt.count(2) == 2  # the template ends each message with </s>
        assert prompt[:10] == words.ids("system: be")
        assert answer.usage.prompt_tokens == len(prompt)
        params = at.verify.opened[0].params
        assert (params.max_tokens, params.seed, params.top_k) == (50, 3, 4)


@pytest.mark.asyncio
async def test_parts_of_a_message_are_lines(model, words):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    async with door(model, [words.end("!")]) as at:
        for content in (parts, "one\ntwo"):
            await at.client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": content}]
            )
        first, second = at.verify.opened
        assert first.prompt == second.prompt


@pytest.mark.asyncio
async def test_without_a_limit_the_context_is_the_limit(model, words):
    async with door(model, [words.end("!")]) as at:
        await at.client.chat.completions.create(model=MODEL, messages=HELLO)
        [opened] = at.verify.opened
        assert opened.params.max_tokens + len(opened.prompt) == 256


@pytest.mark.asyncio
async def test_an_answer_goes_back_as_a_message(model, words):
    """Clients send what they got, with all the fields that are null in it."""
    async with door(model, [words.end("hi")]) as at:
        answer = await at.client.chat.completions.create(model=MODEL, messages=HELLO)
        messages = [*HELLO, answer.choices[0].message.model_dump(), *HELLO]
        await at.client.chat.completions.create(model=MODEL, messages=messages)
        assert at.verify.opened[1].prompt.count(2) == 3


@pytest.mark.asyncio
async def test_events(model, words):
    async with door(model, [words.say("hi "), words.end("you")]) as at:
        events = await at.client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
        )
        first, *middle, last = [event async for event in events]
        [choice] = first.choices
        assert (choice.delta.role, choice.delta.content) == ("assistant", "")
        assert all(event.object == "chat.completion.chunk" for event in (first, *middle, last))
        assert all(event.id == first.id and event.usage is None for event in (first, *middle))
        assert "".join(event.choices[0].delta.content or "" for event in middle) == "hi you"
        assert all(event.choices[0].delta.role is None for event in middle)
        reasons = [event.choices[0].finish_reason for event in (first, *middle)]
        assert reasons[-1] == "stop" and not any(reasons[:-1])
        assert last.choices == [] and last.usage.completion_tokens == 6


@pytest.mark.asyncio
async def test_no_usage_unless_asked(model, words):
    async with door(model, [words.end("hi")]) as at:
        events = await at.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert not any(["usage" in event.model_fields_set async for event in events])


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_show_bytes(model, words, stream):
    """A token may be half a character."""
    e, acute = words.ids("é")
    entries = (TokenLogprobs(-0.25, (e,), (-0.25,)), TokenLogprobs(-0.5, (acute,), (-0.5,)))
    async with door(model, [words.end("é", logprobs=entries)]) as at:
        answer = await at.client.chat.completions.create(
            model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1, stream=stream
        )
        parts = [part async for part in answer] if stream else [answer]
        found = [
            entry
            for part in parts
            for choice in part.choices
            if choice.logprobs is not None
            for entry in choice.logprobs.content
        ]
        assert [entry.bytes for entry in found] == [[0xC3], [0xA9]]
        assert [entry.logprob for entry in found] == [-0.25, -0.5]
        assert [entry.top_logprobs[0].bytes for entry in found] == [[0xC3], [0xA9]]


@pytest.mark.asyncio
async def test_the_chosen_tokens_alone(model, words):
    entry = TokenLogprobs(-0.25)
    async with door(model, [words.end("a", logprobs=(entry,))]) as at:
        answer = await at.client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
        [found] = answer.choices[0].logprobs.content
        assert (found.token, found.logprob, found.top_logprobs) == ("a", -0.25, [])
        assert at.verify.opened[0].params.logprobs == 0
