"""Completions as OpenAI's own client sees them."""

from __future__ import annotations

import pytest
from support.http_door import MODEL, door

from foredraft.wire.messages import TokenLogprobs


@pytest.mark.asyncio
async def test_a_text_goes_on(model, words):
    async with door(model, [words.say(" wor", accepted=3, verified=5), words.end("ld")]) as at:
        answer = await at.client.completions.create(
            model=MODEL,
            prompt="hello",
            max_tokens=9,
            temperature=0.5,
            seed=7,
            top_p=0.9,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"9": 3, "20": -100},
            stop=["x", "y"],
            extra_body={
                "min_p": 0.1,
                "top_k": 5,
                "min_tokens": 2,
                "ignore_eos": True,
                "stop_token_ids": [4],
                "repetition_penalty": 1.5,
            },
        )
        [choice] = answer.choices
        assert (choice.text, choice.index, choice.finish_reason) == (" world", 0, "stop")
        assert choice.logprobs is None
        assert choice.seed == 7
        assert (answer.object, answer.model) == ("text_completion", MODEL)
        assert answer.usage.prompt_tokens == 5
        assert answer.usage.completion_tokens == 6
        assert answer.usage.total_tokens == 11
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 3
        assert answer.usage.completion_tokens_details.rejected_prediction_tokens == 2

        [opened] = at.verify.opened
        params = opened.params
        assert opened.prompt == words.ids("hello")
        assert (params.max_tokens, params.min_tokens, params.seed) == (9, 2, 7)
        assert (params.temperature, params.top_k) == (0.5, 5)
        assert params.top_p == pytest.approx(0.9)
        assert params.min_p == pytest.approx(0.1)
        assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
        assert params.repetition_penalty == 1.5
        assert dict(params.logit_bias) == {9: 3.0, 20: -100.0}
        assert params.ignore_eos and params.stop_token_ids == (4,)


@pytest.mark.asyncio
async def test_defaults_are_those_of_openai(model, words):
    async with door(model, [words.end("a")]) as at:
        answer = await at.client.completions.create(model=MODEL, prompt="hello")
        params = at.verify.opened[0].params
        assert (params.max_tokens, params.temperature, params.logprobs) == (16, 1.0, None)
        assert answer.choices[0].seed == params.seed
        assert answer._request_id == answer.id.removeprefix("cmpl-")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("ab", [(69, 70)]),
        (["ab", "c"], [(69, 70), (71,)]),
        ([69, 70], [(69, 70)]),
        ([[69, 70], [71]], [(69, 70), (71,)]),
        (["ab", [71]], [(69, 70), (71,)]),
    ],
)
async def test_every_kind_of_prompt(model, words, prompt, asked):
    async with door(model, [words.end("!")]) as at:
        answer = await at.client.completions.create(
            model=MODEL, prompt=prompt, n=2, extra_body={"best_of": 2}
        )
        assert [choice.index for choice in answer.choices] == list(range(2 * len(asked)))
        assert all(choice.text == "!" for choice in answer.choices)
        twice = [ids for ids in asked for _ in range(2)]
        assert [opened.prompt for opened in at.verify.opened] == twice
        assert answer.usage.prompt_tokens == sum(len(ids) for ids in asked)
        assert answer.usage.completion_tokens == len(twice)


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_cached_of_a_prompt_counts_once(model, words, stream):
    rounds = [words.say("a", cached=2), words.end("!")]
    asked = {"model": MODEL, "prompt": ["abc", "abcd"], "n": 4}
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    async with door(model, rounds) as at:
        answer = await at.client.completions.create(**asked)
        usage = [event async for event in answer][-1].usage if stream else answer.usage
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (7, 4)


@pytest.mark.asyncio
async def test_choices_have_one_seed_and_numbers_of_their_own(model, words):
    async with door(model, [words.end("!")]) as at:
        await at.client.completions.create(model=MODEL, prompt=["a", "b"], n=3)
        opened = at.verify.opened
        assert [sequence.choice for sequence in opened] == [0, 1, 2, 0, 1, 2]
        assert len({sequence.params.seed for sequence in opened[:3]}) == 1
        assert opened[0].params.seed != opened[3].params.seed
        assert len({sequence.seq_id for sequence in opened}) == 6


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["ab", [69, 70]])
async def test_echo(model, words, stream, prompt):
    async with door(model, [words.end("!")]) as at:
        answer = await at.client.completions.create(
            model=MODEL, prompt=prompt, echo=True, n=2, stream=stream
        )
        texts = {0: "", 1: ""}
        for part in [part async for part in answer] if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == {0: "ab!", 1: "ab!"}


@pytest.mark.asyncio
async def test_logprobs_whole_and_in_events(model, words):
    b, c = words.ids("bc")
    entry = TokenLogprobs(-1.5, (b, c), (-0.5, -1.0))
    rounds = [words.say("a", logprobs=(entry,)), words.end("b", logprobs=(entry,))]
    expected = {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.5, -1.5],
        "top_logprobs": [{"a": -1.5, "b": -0.5, "c": -1.0}, {"b": -0.5, "c": -1.0}],
        "text_offset": [0, 1],
    }
    async with door(model, rounds) as at:
        answer = await at.client.completions.create(model=MODEL, prompt="x", logprobs=2)
        assert answer.choices[0].logprobs.model_dump() == expected
        assert at.verify.opened[0].params.logprobs == 2
        events = await at.client.completions.create(
            model=MODEL, prompt="x", logprobs=2, stream=True
        )
        together = {name: [] for name in expected}
        async for event in events:
            for name, column in event.choices[0].logprobs.model_dump().items():
                together[name] += column
        assert together == expected


@pytest.mark.asyncio
async def test_a_stop_string_ends_the_text_before_it(model, words):
    async with door(model, [words.say("one. t"), words.say("wo. three")]) as at:
        answer = await at.client.completions.create(
            model=MODEL, prompt="x", stop=" two", max_tokens=99
        )
        assert answer.choices[0].text == "one."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == len("one. two")


@pytest.mark.asyncio
async def test_events_as_they_are_on_the_wire(model, words):
    async with door(model, [words.end("é\n")]) as at:
        body = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
        async with at.http.post("/v1/completions", json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/event-stream")
            events = (await response.text()).split("\n\n")
        assert all(event.startswith("data: {") for event in events[:-2])
        assert events[-2:] == ["data: [DONE]", ""]
        assert '"text":"é\\n"' in events[0] and '"usage":null' in events[0]
        assert '"choices":[],"usage":{"prompt_tokens":1' in events[-3]


@pytest.mark.asyncio
async def test_events_of_several_choices(model, words):
    async with door(model, [words.say("ab"), words.end("c")]) as at:
        events = await at.client.completions.create(
            model=MODEL,
            prompt=["x", "yz"],
            n=2,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
        texts, finished, usage = [""] * 4, [], []
        async for event in events:
            usage.append(event.usage.completion_tokens)
            for choice in event.choices:
                texts[choice.index] += choice.text
                if choice.finish_reason is not None:
                    finished.append(choice.index)
        assert texts == ["abc"] * 4
        assert sorted(finished) == [0, 1, 2, 3]
        assert usage == sorted(usage) and usage[-1] == 12
