"""Keywords become the fields of the same names, or an error that names them."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.call import build_request, read_timeout
from foredraft.errors import ForedraftError, InvalidRequest, Unsupported, translated
from foredraft.params import InvalidField, Speculation, check_params
from foredraft.request import (
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    TextPrompt,
    TokenPrompt,
    sampling_params,
)
from foredraft.v1 import generate_pb2
from foredraft.wire.codec.generate import decode_request, encode_request

SMALL_FLOAT = st.floats(-100, 100, width=32)
SHARE = st.floats(0.125, 1, width=32)
TOKEN = st.integers(0, 2**31 - 1)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(500, 2**31 - 1),
        "min_tokens": st.integers(0, 500),
        "temperature": st.floats(0, 100, width=32),
        "top_p": SHARE,
        "top_k": st.integers(0, 2**63 - 1),
        "min_p": SHARE,
        "repetition_penalty": st.floats(0.125, 100, width=32),
        "presence_penalty": SMALL_FLOAT,
        "frequency_penalty": SMALL_FLOAT,
        "logit_bias": st.dictionaries(TOKEN, SMALL_FLOAT, max_size=3).map(MappingProxyType),
        "seed": st.integers(0, 2**64 - 1),
        "stop": st.lists(st.text(min_size=1, max_size=4), max_size=3).map(tuple),
        "stop_token_ids": st.lists(TOKEN, max_size=3).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 20),
        "speculation": st.sampled_from(Speculation),
        "lossless": st.booleans(),
    },
)
UNSUPPORTED = st.fixed_dictionaries(
    {},
    optional={
        "grammar": st.text(min_size=1, max_size=4),
        "json_schema": st.text(min_size=1, max_size=4),
        "adapter": st.text(min_size=1, max_size=4),
        "lossy_threshold": SMALL_FLOAT,
    },
)


def resent(request):
    """The request as the server reads it."""
    wire = encode_request(request).SerializeToString()
    return decode_request(generate_pb2.GenerateRequest.FromString(wire))


@given(OPTIONS)
def test_every_option_arrives(options):
    request = build_request("text", None, "tiny", options)
    assert resent(request) == request


@given(UNSUPPORTED)
def test_what_a_server_refuses_arrives_there(options):
    request = GenerateRequest(TextPrompt("text"), GenerateOptions(**options))
    assert resent(request) == request


def test_options_are_those_of_the_protocol():
    names = {field.name for field in generate_pb2.GenerateParams.DESCRIPTOR.fields}
    with pytest.raises(TypeError) as refused:
        build_request("text", None, "", {"max_token": 5})
    listed = str(refused.value).partition("the options are ")[2].split(", ")
    assert "'max_token'" in str(refused.value) and set(listed) == names


@pytest.mark.parametrize(
    ("prompt", "messages", "expected"),
    [
        ("text", None, TextPrompt("text")),
        ([1, 2], None, TokenPrompt((1, 2))),
        (None, [{"role": "user", "content": "a"}], ChatPrompt((ChatMessage("user", "a"),))),
        ("", None, TextPrompt("")),
        ([], None, TokenPrompt(())),
        (None, [], ChatPrompt(())),
    ],
)
def test_prompts(prompt, messages, expected):
    request = build_request(prompt, messages, "", {})
    assert request.prompt == expected and decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "arguments",
    [(None, None), ("text", [{"role": "user", "content": "a"}])],
)
def test_exactly_one_prompt(arguments):
    with pytest.raises(TypeError, match="exactly one"):
        build_request(*arguments, "", {})


def refusal(prompt=None, messages=None, model="", **options):
    """What a call raises, before anything is sent."""
    if prompt is None and messages is None:
        prompt = "text"
    with pytest.raises(ForedraftError) as refused, translated():
        build_request(prompt, messages, model, options)
    return refused.value


COUNT = "2^31 - 1"


@pytest.mark.parametrize(
    ("option", "values", "allowed"),
    [
        ("max_tokens", [-1, 0, 2**31, 10**400, 1.0, "5", True, [1]], f"from 1 to {COUNT}"),
        ("min_tokens", [-1, 2**31, 1.5, False], f"from 0 to {COUNT}"),
        ("temperature", ["hot", 10**400, 1e300, -0.1, 101, math.nan, True, 1j], "from 0 to 100"),
        ("top_p", [0, 1.5, 1e-60, math.inf], "above 0 to 1"),
        ("top_k", [-1, 2**63, 2.0], "from 0 to 2^63 - 1"),
        ("min_p", [-1, 2], "from 0 to 1"),
        ("repetition_penalty", [0, 101], "from 0.01 to 100"),
        ("presence_penalty", [-101, "1"], "from -100 to 100"),
        ("frequency_penalty", [101], "from -100 to 100"),
        ("seed", [2**64, -1, True, 1.5], "from 0 to 2^64 - 1"),
        ("logprobs", [21, -1, True], "from 0 to 20"),
        ("stop", [5, [1], ["a", None], b"ab", {"a": 1}], "a text or a list of texts"),
        ("stop", ["", ["a", ""]], "at least one character"),
        ("stop", [["a"] * 17], "at most 16"),
        ("stop", ["\ud800"], "UTF-8"),
        ("stop_token_ids", [5, "12", b"ab", [True], [-1], [1.0], [2**31]], f"from 0 to {COUNT}"),
        ("logit_bias", [[1], 5, {"a": 1}, {True: 1}, {-1: 1.0}], f"from 0 to {COUNT}"),
        ("logit_bias", [{1: "x"}, {1: 1001}, {1: math.nan}, {1: True}], "from -1000 to 1000"),
        ("ignore_eos", [1, "yes"], "True or False"),
        ("lossless", [0], "True or False"),
        ("speculation", ["fast", ["auto"], 4, True, {}], "one of off, suffix, model, auto"),
    ],
)
def test_values_that_are_not_allowed(option, values, allowed):
    for value in values:
        error = refusal(**{option: value})
        assert isinstance(error, InvalidRequest) and error.field == option
        assert str(error).startswith(f"{option} must be") and allowed in str(error)


@pytest.mark.parametrize(
    "ids",
    [
        *([-1], [2**31], ["a"], [True], [1.0], [None]),
        *(5, b"abc", bytearray(b"a"), memoryview(b"a"), {1, 2}, {1: 2}),
    ],
)
def test_prompts_of_the_wrong_kind(ids):
    error = refusal(ids)
    assert isinstance(error, InvalidRequest) and error.field == "prompt"
    assert f"a text or a list of token ids, each a whole number from 0 to {COUNT}" in str(error)


@pytest.mark.parametrize(
    "messages",
    [
        "hello",
        b"hello",
        5,
        {"role": "user", "content": "a"},
        [None],
        ["a"],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": None, "content": "a"}],
        [{"role": "user", "content": b"a"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "user", "content": "a", "name": "b"}],
    ],
)
def test_messages_of_the_wrong_kind(messages):
    error = refusal(messages=messages)
    assert isinstance(error, InvalidRequest) and error.field == "messages"
    assert '"role" and "content"' in str(error)


def test_text_that_cannot_be_sent():
    chat = [{"role": "user", "content": "\ud800"}]
    assert [refusal("\ud800").field, refusal(messages=chat).field] == ["prompt", "messages"]
    assert [refusal(model=5).field, refusal(model=None).field] == ["model", "model"]


@pytest.mark.parametrize("option", ["grammar", "json_schema", "adapter", "lossy_threshold"])
@pytest.mark.parametrize("value", ["", "x", {}, {"type": "object"}, 0, 0.5, False])
def test_unsupported_options_are_refused_with_any_value(option, value):
    error = refusal(**{option: value})
    assert isinstance(error, Unsupported) and error.field == option
    assert str(error) == f"{option} is not supported" and error.code == "UNIMPLEMENTED"


def test_lossless_refuses_what_is_lossy():
    assert refusal(lossless=True, lossy_threshold=0.5).code == "INVALID_ARGUMENT"


def test_min_tokens_above_max_tokens():
    assert str(refusal(min_tokens=5, max_tokens=4)) == (
        "min_tokens must be at most max_tokens, which is 4"
    )


def test_numbers_at_their_limits_pass():
    options = {"repetition_penalty": 0.01, "temperature": 100, "max_tokens": 2**31 - 1}
    made = resent(build_request(numpy.array([1, 2]), None, "", options | {"seed": numpy.int64(3)}))
    assert made.prompt == TokenPrompt((1, 2)) and made.options.seed == 3
    check_params(sampling_params(made.options))  # as the server reads them, in float32


@pytest.mark.parametrize("value", ["5", math.nan, math.inf, -1, True, 10**400])
def test_timeouts_are_numbers(value):
    with pytest.raises(InvalidField, match=r"timeout must be a number from 0 to 1e\+09, in sec"):
        read_timeout(value)


def test_one_stop_string_is_a_list_of_one():
    assert build_request("a", None, "", {"stop": "END"}).options.stop == ("END",)
