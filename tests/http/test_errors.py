"""What is refused, how, and that nothing is opened for it."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from pathlib import Path

import openai
import pytest
from support.fakes import until
from support.http_door import MODEL, door

from foredraft.wire.channel import MAX_REQUEST_BYTES
from foredraft.wire.messages import SequenceError, SequenceErrors
from gateway.http import errors

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def message(**fields):
    return {"messages": [{**HELLO[0], **fields}]}


REFUSED = [
    (COMPLETION, {"foo": 1}, "foo", "unknown_field"),
    (COMPLETION, {"prompt": None}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": ""}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": []}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": [[]]}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": ["a", 1]}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": [1, True]}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": [259]}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": "\ud800"}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": [1] * 256}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": "a" * 5000}, "prompt", "invalid_value"),
    (COMPLETION, {"prompt": ["a"] * 33}, "prompt", "invalid_value"),
    (COMPLETION, {"max_tokens": 0}, "max_tokens", "invalid_value"),
    (COMPLETION, {"max_tokens": "9"}, "max_tokens", "invalid_value"),
    (COMPLETION, {"min_tokens": 17}, "min_tokens", "invalid_value"),
    (COMPLETION, {"temperature": 101}, "temperature", "invalid_value"),
    (COMPLETION, {"top_p": 0}, "top_p", "invalid_value"),
    (COMPLETION, {"n": 0}, "n", "invalid_value"),
    (COMPLETION, {"n": 2, "best_of": 3}, "best_of", "invalid_value"),
    (COMPLETION, {"logprobs": 21}, "logprobs", "invalid_value"),
    (COMPLETION, {"logprobs": True}, "logprobs", "invalid_value"),
    (COMPLETION, {"echo": 1}, "echo", "invalid_value"),
    (COMPLETION, {"stop": ["a"] * 17}, "stop", "invalid_value"),
    (COMPLETION, {"stop": [1]}, "stop", "invalid_value"),
    (COMPLETION, {"logit_bias": {"9": 1001}}, "logit_bias", "invalid_value"),
    (COMPLETION, {"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    (COMPLETION, {"logit_bias": {"259": 1}}, "logit_bias", "invalid_value"),
    (COMPLETION, {"logit_bias": [1]}, "logit_bias", "invalid_value"),
    (COMPLETION, {"logit_bias": {"5": 2, "05": 1}}, "logit_bias", "invalid_value"),
    (COMPLETION, {"seed": -1}, "seed", "invalid_value"),
    (COMPLETION, {"stream": "yes"}, "stream", "invalid_value"),
    (COMPLETION, {"stream_options": {}}, "stream_options", "invalid_value"),
    (COMPLETION, {"stream": True, "stream_options": []}, "stream_options", "invalid_value"),
    (
        COMPLETION,
        {"stream": True, "stream_options": {"foo": 1}},
        "stream_options.foo",
        "unknown_field",
    ),
    (COMPLETION, {"suffix": "b"}, "suffix", "unsupported"),
    (COMPLETION, {"grammar": "b"}, "grammar", "unsupported"),
    (COMPLETION, {"model": 5}, "model", "invalid_value"),
    (CHAT, {"messages": None}, "messages", "invalid_value"),
    (CHAT, {"messages": []}, "messages", "invalid_value"),
    (CHAT, {"messages": ["a"]}, "messages[0]", "invalid_value"),
    (CHAT, message(role=None), "messages[0].role", "invalid_value"),
    (CHAT, message(content=None), "messages[0].content", "invalid_value"),
    (CHAT, message(content=[IMAGE]), "messages[0].content[0].type", "unsupported"),
    (CHAT, message(content=["a"]), "messages[0].content[0]", "invalid_value"),
    (CHAT, message(name="me"), "messages[0].name", "unsupported"),
    (CHAT, message(tool_calls=[{}]), "messages[0].tool_calls", "unsupported"),
    (CHAT, message(foo=1), "messages[0].foo", "unknown_field"),
    (CHAT, {"prompt": "a"}, "prompt", "unknown_field"),
    (CHAT, message(content="a" * 256), "messages", "invalid_value"),
    (CHAT, message(content="a" * 5000), "messages", "invalid_value"),
    (CHAT, {"tools": [{}]}, "tools", "unsupported"),
    (CHAT, {"tools": False}, "tools", "unsupported"),
    (CHAT, {"store": 0}, "store", "unsupported"),
    (CHAT, {"store": True}, "store", "unsupported"),
    (CHAT, {"parallel_tool_calls": 1}, "parallel_tool_calls", "unsupported"),
    (CHAT, {"tool_choice": "auto"}, "tool_choice", "unsupported"),
    (CHAT, {"functions": [{}]}, "functions", "unsupported"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format", "unsupported"),
    (CHAT, {"audio": {}}, "audio", "unsupported"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities", "unsupported"),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
    (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    (CHAT, {"top_logprobs": 1}, "top_logprobs", "invalid_value"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    (CHAT, {"logprobs": 1}, "logprobs", "invalid_value"),
]


@pytest.mark.asyncio
async def test_a_refusal_names_the_field(model):
    async with door(model) as at:
        for path, fields, param, code in REFUSED:
            base = {"prompt": "a"} if path == COMPLETION else {"messages": HELLO}
            async with at.http.post(path, json=base | fields) as response:
                error = (await response.json())["error"]
                assert response.status == 400, fields
            assert error.keys() == {"message", "type", "param", "code"}
            assert (error["param"], error["code"]) == (param, code), fields
            assert error["type"] == "invalid_request_error"
            assert param in error["message"]
        assert at.verify.opened == []


@pytest.mark.asyncio
async def test_fields_that_ask_for_nothing_are_taken(model, words):
    neutral = {
        "audio": None,
        "foo": None,
        "functions": None,
        "logit_bias": None,
        "metadata": None,
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "store": False,
        "stop": None,
        "stream_options": None,
        "tool_choice": "none",
        "tools": None,
        "user": "somebody",
    }
    async with door(model, [words.end("a")]) as at:
        body = {"messages": HELLO, **neutral}
        async with at.http.post(CHAT, json=body) as response:
            assert response.status == 200, await response.text()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "logit_bias": {"5": 2, "5": 1}}',
        b"\xff",
        b"[" * 100_000,
        b'{"seed": %s}' % (b"9" * 5000),
    ],
)
async def test_what_is_no_json_object(model, body):
    async with door(model) as at, at.http.post(COMPLETION, data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "invalid_json"


@pytest.mark.asyncio
async def test_a_body_that_is_not_compressed_as_it_says(model):
    async with door(model) as at:
        headers = {"Content-Encoding": "gzip"}
        async with at.http.post(COMPLETION, data=b"{}" * 100, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "invalid_body"


@pytest.mark.asyncio
async def test_a_body_that_is_too_large(model):
    async with door(model) as at:
        body = json.dumps({"prompt": "a" * MAX_REQUEST_BYTES})
        async with at.http.post(COMPLETION, data=body) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "request_too_large"


@pytest.mark.asyncio
async def test_what_is_not_there(model):
    async with door(model) as at:
        async with at.http.get("/v1/nothing") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "not_found"
        async with at.http.get(COMPLETION) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            assert (await response.json())["error"]["code"] == "method_not_allowed"
        async with at.http.get("/v1/completions/") as response:
            assert response.status == 404
        with pytest.raises(openai.NotFoundError) as refused:
            await at.client.completions.create(model="other", prompt="a")
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            await at.client.completions.create(model=MODEL, prompt="a", temperature=-1)
        assert bad.value.param == "temperature"


@pytest.mark.asyncio
async def test_too_many_at_once(model, words):
    async with door(model, max_sequences=1) as at:
        asking = asyncio.create_task(at.client.completions.create(model=MODEL, prompt="a", n=3))
        await until(lambda: len(at.verify.opened) == 3)
        with pytest.raises(openai.RateLimitError) as refused:
            await at.client.completions.create(model=MODEL, prompt="a", n=2)
        assert refused.value.response.headers["Retry-After"] == "1"
        assert refused.value.code == "overloaded"
        assert len(at.verify.opened) == 3
        for sequence in at.verify.opened:
            at.verify.commit(sequence.seq_id, words.end("b"))
        assert len((await asking).choices) == 3
        at.verify.rounds = (words.end("c"),)
        await at.client.completions.create(model=MODEL, prompt="a", n=4)


@pytest.mark.asyncio
async def test_the_target_is_lost(model, caplog):
    async with door(model, resume_seconds=0.0) as at:
        asking = asyncio.create_task(at.client.completions.create(model=MODEL, prompt="a", n=2))
        await until(lambda: len(at.verify.live) == 2)
        at.verify.hang_up()
        with pytest.raises(openai.InternalServerError) as failed:
            await asking
        assert failed.value.status_code == 503
        assert failed.value.response.headers["Retry-After"] == "1"
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.asyncio
async def test_a_fault_of_one_sequence_before_and_within_a_stream(model, words):
    """Of all choices: an answer with a part of them would not be what was asked for."""
    async with door(model) as at:
        for began in (False, True):
            asking = asyncio.create_task(
                at.client.completions.create(model=MODEL, prompt="a", n=2, stream=True)
            )
            await until(lambda: len(at.verify.live) == 2)
            first, second = at.verify.live.values()
            if began:
                at.verify.commit(first.seq_id, words.say("b"))
                stream = await asking
                assert (await anext(stream)).choices[0].text == "b"
            fault = SequenceError(second.seq_id, second.incarnation, 9, "no room for it")
            at.verify.say(SequenceErrors((fault,)))
            with pytest.raises(openai.APIError, match="no room for it") as failed:
                await anext(stream) if began else await asking
            assert isinstance(failed.value, openai.BadRequestError) != began
            at.verify.live.pop(second.seq_id)
            await until(lambda: not at.verify.live)


@pytest.mark.asyncio
async def test_a_fault_of_ours_tells_nothing(model, monkeypatch, caplog):
    async with door(model) as at:
        secret = RuntimeError("a prompt")
        monkeypatch.setattr(at.gateway.relay, "start", lambda *_: (_ for _ in ()).throw(secret))
        with pytest.raises(openai.InternalServerError) as failed:
            await at.client.completions.create(model=MODEL, prompt="a")
        assert "a prompt" not in failed.value.response.text
        [incident] = [r.args[0] for r in caplog.records if r.msg == "incident %s"]
        assert incident in failed.value.message


@pytest.mark.asyncio
async def test_every_response_has_an_id(model):
    """A caller's own, if it sent one."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    own = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    async with door(model) as at:
        ids = set()
        for method, path in [
            ("GET", "/v1/models"),
            ("GET", "/v1/nothing"),
            ("GET", COMPLETION),
            ("POST", COMPLETION),
            ("GET", "/health"),
        ]:
            for headers in ({}, own):
                async with at.http.request(method, path, headers=headers) as response:
                    ids.add(response.headers["x-request-id"])
        assert len(ids) == 6 and trace in ids
        assert all(int(each, 16) and len(each) == 32 for each in ids)


def documented() -> set[tuple[int, str]]:
    """Statuses and codes in the table of docs/http.md."""
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d{3}) \| ([^|]*) \|", text, re.MULTILINE)
    return {(int(status), code) for status, cell in rows for code in re.findall(r"`(\w+)`", cell)}


def made() -> set[tuple[int, str]]:
    """Statuses and codes in the sources of the door."""
    sources = Path(errors.__file__).parent.glob("*.py")
    text = "".join(source.read_text("utf-8") for source in sources)
    faults = re.findall(r"HttpFault\(\s*(\d{3}),.*?\"(\w+)\"(?:, [^)]*)?\s*\)", text, re.DOTALL)
    faults += re.findall(r"ApiError\((\d{3}), .*code=\"(\w+)\"\)", text)
    kinds = {(status, code) for status, _, code in errors._KINDS.values()}
    others = {(500, "internal_error"), *errors._BY_STATUS.items()}
    return {(int(status), code) for status, code in faults} | kinds | others


def test_every_error_is_documented():
    assert len(made()) > 15
    assert made() == documented()
