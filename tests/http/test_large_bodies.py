"""Bodies that hold far too much: refused by name, and meanwhile the others are served."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter

import pytest
from support.http_door import MODEL, door
from support.loop_lag import measured
from support.raw_http import exchange, post

from foredraft.wire.channel import MAX_REQUEST_BYTES
from foredraft.wire.messages import TokenLogprobs
from gateway.http import json_text
from gateway.http.json_text import MAX_VALUES, parse, write
from gateway.tokenizer import Tokenizer

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
MANY = 40_000
TURN, PART = {"role": "user", "content": "a"}, {"type": "text", "text": "a"}
# Path, body, and the field and the limit that the refusal names.
TOO_MUCH = [
    (COMPLETION, {"prompt": [5] * MANY}, "prompt", 255),
    (COMPLETION, {"prompt": [[5], [5] * MANY]}, "prompt", 255),
    (COMPLETION, {"prompt": ["a"] * MANY}, "prompt", 32),
    (COMPLETION, {"prompt": "a" * MANY}, "prompt", 4096),
    (COMPLETION, {"prompt": "a", "n": 33}, "n", 32),
    (COMPLETION, {"prompt": ["a"] * 11, "n": 3}, "n", 2),
    (COMPLETION, {"prompt": "a", "stop": ["a"] * MANY}, "stop", 16),
    (COMPLETION, {"prompt": "a", "stop_token_ids": [5] * MANY}, "stop_token_ids", 1024),
    (
        COMPLETION,
        {"prompt": "a", "logit_bias": {str(token): 1 for token in range(MANY)}},
        "logit_bias",
        1024,
    ),
    (CHAT, {"messages": [TURN] * MANY}, "messages", 16_384),
    (CHAT, {"messages": [{"role": "user", "content": [PART] * MANY}]}, "messages[0].content", 1024),
    (CHAT, {"messages": [TURN], "n": 33}, "n", 32),
    ("/tokenize", {"messages": [TURN] * MANY}, "messages", 16_384),
    ("/detokenize", {"tokens": [5] * MANY}, "tokens", 256),
]


@pytest.mark.asyncio
async def test_the_refusal_names_field_and_limit(model):
    async with door(model) as at:
        for path, body, param, limit in TOO_MUCH:
            sent = json.dumps(body).encode()
            assert len(sent) < MAX_REQUEST_BYTES
            reply = await exchange(at.gateway.http.address, post(path, sent))
            error = reply.error()
            assert (reply.status, error["param"]) == (400, param), (path, param)
            assert f"at most {limit} " in error["message"]
        assert not at.verify.opened


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b"[" + MAX_VALUES * b"5," + b"5]", MAX_VALUES),
        (b"[" + MAX_VALUES * b"[]," + b"5]", MAX_VALUES),
        (b'{"prompt":"' + MAX_REQUEST_BYTES * b"a" + b'"}', MAX_REQUEST_BYTES),
    ],
)
async def test_what_is_too_large_is_not_decoded(model, monkeypatch, body, limit):
    monkeypatch.setattr(json_text, "json", None)
    async with door(model) as at:
        reply = await exchange(at.gateway.http.address, post(COMPLETION, body))
    assert (reply.status, reply.error()["code"]) == (413, "request_too_large")
    assert str(limit) in reply.error()["message"]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_others_are_answered_while_a_large_body_is_read(model, words):
    """How long is too long is told by the quick decoder, which nothing interrupts."""
    body = b'{"prompt":[' + 200_000 * b"[]," + b"[]]}"
    gc.freeze()  # what other tests have left is no gateway's
    began = time.perf_counter()
    for _ in range(3):
        json.loads(body)
    uninterrupted = time.perf_counter() - began
    async with door(model, [words.end("b")]) as at:
        async with measured() as lag:
            reading = asyncio.create_task(exchange(at.gateway.http.address, post(COMPLETION, body)))
            answered = 0
            while not reading.done():
                answer = await at.client.completions.create(model=MODEL, prompt="a")
                answered += answer.choices[0].text == "b"
        reply = await reading
        assert (reply.status, reply.error()["param"]) == (400, "prompt")
        assert answered >= 3
        assert lag.longest < uninterrupted, "something held the event loop"
    gc.unfreeze()


@pytest.mark.asyncio
async def test_others_have_their_turns_among_many_choices(model, words, monkeypatch):
    turn = 0
    turns: dict[str, list[int]] = {"plan": [], "start": []}

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with door(model, [words.end("b")], max_sequences=32) as at:
        for part, name in ((at.gateway.intake._planner, "plan"), (at.gateway.relay, "start")):
            real = getattr(part, name)

            def noted(*arguments, real=real, name=name):
                turns[name].append(turn)
                return real(*arguments)

            monkeypatch.setattr(part, name, noted)
        counting = asyncio.create_task(count())
        answer = await at.client.completions.create(model=MODEL, prompt=["a"] * 16, n=8)
        counting.cancel()
    assert len(answer.choices) == len(turns["start"]) == 128
    assert max(Counter(turns["plan"]).values()) == 1
    assert max(Counter(turns["start"]).values()) <= 8


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_longest_text_is_read_beside_the_others(model):
    """Its ids are as if it had been read in one go."""
    tokenizer = Tokenizer(model)
    for special in (False, True):
        assert await tokenizer.encode(5000 * "é</s>", special=special) == tokenizer._encode(
            5000 * "é</s>", special
        )
    async with measured() as lag:
        began = time.perf_counter()
        await tokenizer.encode(150_000 * "a ")
        reading = time.perf_counter() - began
    assert lag.longest < reading / 2


@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_is_large_is_written_beside_the_others():
    few, many = {"a": [1, 2.5, "é", None, True]}, [{"a": [1, 2.5, "é"]} for _ in range(100_000)]
    assert await write(lambda: few, 5) == json.dumps(few)
    gc.freeze()
    began = time.perf_counter()
    expected = json.dumps(many)
    uninterrupted = time.perf_counter() - began
    async with measured() as lag:
        assert await write(lambda: many, 300_000) == expected
    gc.unfreeze()
    assert lag.longest < uninterrupted


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("path", [COMPLETION, CHAT])
async def test_others_are_answered_while_a_large_answer_is_written(model, words, path):
    """Its own text, written in one go, is the measure."""
    best = tuple(range(100, 120))
    logprobs = (TokenLogprobs(-1.0, best, (-2.0,) * len(best)),) * 40
    rounds = [words.end(40 * "a", logprobs=logprobs)]
    body = {"prompt": "a", "logprobs": 20}
    if path == CHAT:
        body = {"messages": [TURN], "logprobs": True, "top_logprobs": 20}
    async with door(model, rounds, max_sequences=32) as at:
        sent = post(path, json.dumps(body | {"n": 128, "max_tokens": 100}).encode())
        gc.freeze()
        async with measured() as lag:
            reply = await exchange(at.gateway.http.address, sent)
        gc.unfreeze()
    assert reply.status == 200
    whole = json.loads(reply.body)
    began = time.perf_counter()
    for _ in range(3):
        json.dumps(whole)
    assert lag.longest < time.perf_counter() - began
    assert len(whole["choices"]) == 128


@pytest.mark.parametrize("copies", [1, 30_000])
def test_both_decoders_read_alike(copies):
    text = r'{"a": [1, -2.5e3, true, false, null, "\"[{,:\\"], "b": {"é": "😀"}, "c": ""}'
    raw = f"[{','.join(copies * [text])}]".encode()
    assert parse(raw) == copies * [json.loads(text)]


@pytest.mark.parametrize("copies", [0, 30_000])
@pytest.mark.parametrize(
    "bad", ["NaN", '{"a": 1, "a": 2}', "[1,]", "[1", "'a'", "\ud800", "[" * 5000]
)
def test_both_decoders_refuse_alike(copies, bad):
    raw = f"[{copies * '1,'}{bad}]".encode("utf-8", "surrogatepass")
    with pytest.raises((ValueError, RecursionError)):
        parse(raw)


def test_texts_may_hold_any_number_of_marks():
    text = MAX_VALUES * r",:[{\"" + "\\\\"
    assert parse(b'["' + text.encode() + b'"]') == [json.loads(f'"{text}"')]
