"""Keywords become the fields of the same names, or an error that names them."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.call import build_request
from foredraft.errors import InvalidRequest, translated
from foredraft.params import Speculation
from foredraft.request import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from foredraft.v1 import generate_pb2
from foredraft.wire.codec.generate import decode_request, encode_request

SMALL_FLOAT = st.floats(-100, 100, width=32)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(0, 2**32 - 1),
        "min_tokens": st.integers(0, 2**32 - 1),
        "temperature": SMALL_FLOAT,
        "top_p": SMALL_FLOAT,
        "top_k": st.integers(-(2**63), 2**63 - 1),
        "min_p": SMALL_FLOAT,
        "repetition_penalty": SMALL_FLOAT,
        "presence_penalty": SMALL_FLOAT,
        "frequency_penalty": SMALL_FLOAT,
        "logit_bias": st.dictionaries(st.integers(-5, 2**40), SMALL_FLOAT, max_size=3).map(
            MappingProxyType
        ),
        "seed": st.integers(0, 2**64 - 1),
        "stop": st.lists(st.text(max_size=4), max_size=3).map(tuple),
        "stop_token_ids": st.lists(st.integers(-5, 2**40), max_size=3).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 100),
        "speculation": st.sampled_from(Speculation),
        "grammar": st.text(max_size=4),
        "json_schema": st.text(max_size=4),
        "adapter": st.text(max_size=4),
        "lossy_threshold": SMALL_FLOAT,
        "lossless": st.booleans(),
    },
)


@given(OPTIONS)
def test_every_option_arrives(options):
    request = build_request("text", None, "tiny", options)
    wire = encode_request(request)
    assert decode_request(generate_pb2.GenerateRequest.FromString(wire.SerializeToString())) == (
        request
    )


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


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_tokens", {"max_tokens": -1}),
        ("temperature", {"temperature": "hot"}),
        ("seed", {"seed": 2**64}),
        ("stop", {"stop": [5]}),
        ("logit_bias", {"logit_bias": {"a": 1.0}}),
        ("speculation", {"speculation": "fast"}),
    ],
)
def test_values_of_the_wrong_kind(field, options):
    with pytest.raises(InvalidRequest) as refused, translated():
        encode_request(build_request("text", None, "", options))
    assert refused.value.field == field and field in str(refused.value)


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"]])
def test_ids_of_the_wrong_kind(ids):
    with pytest.raises(InvalidRequest) as refused, translated():
        encode_request(build_request(ids, None, "", {}))
    assert refused.value.field == "prompt"


def test_one_stop_string_is_a_list_of_one():
    assert build_request("a", None, "", {"stop": "END"}).options.stop == ("END",)


def test_messages_with_more_than_a_turn_are_refused():
    with pytest.raises(InvalidRequest, match="role"), translated():
        build_request(None, [{"role": "user", "content": "a", "name": "b"}], "", {})
