"""Defaults, limits and refusals of a request, each by the name of its field."""

from __future__ import annotations

import math
import threading

import pytest
from support.tiny_models import make_tiny_tokenizer

from foredraft.chat_template import ChatTemplate
from foredraft.params import InvalidField, Speculation, Unsupported
from foredraft.request import (
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    TextPrompt,
    TokenPrompt,
)
from foredraft.wire.messages import ModelInfo
from gateway.plan import Planner
from gateway.tokenizer import Tokenizer

MODEL = ModelInfo("tiny", "", vocab_size=259, context_length=32, eos_token_ids=(2,))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


def planner(directory, speculation=Speculation.AUTO):
    return Planner(Tokenizer(directory), ChatTemplate(directory), speculation)


async def plan(directory, prompt="hello", model="", speculation=Speculation.AUTO, **options):
    asked = TextPrompt(prompt) if isinstance(prompt, str) else prompt
    request = GenerateRequest(asked, GenerateOptions(**options), model)
    return await planner(directory, speculation).plan(request, MODEL)


@pytest.mark.asyncio
async def test_defaults(directory):
    made = await plan(directory)
    assert len(made.prompt) == 5
    assert made.params.temperature == 0.0 and made.params.max_tokens == 27
    assert made.speculation is Speculation.AUTO
    other = await plan(directory)
    assert made.params.seed != other.params.seed


@pytest.mark.asyncio
async def test_a_chat_is_templated(directory):
    chat = await plan(directory, ChatPrompt((ChatMessage("user", "a"),)))
    text = await plan(directory, "user: a</s>assistant: ")
    assert chat.prompt == text.prompt and 2 in chat.prompt


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {259: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (259,)}, "stop_token_ids"),
        ({"stop": ("a", "")}, "stop"),
        ({"stop": ("a",) * 17}, "stop"),
        ({"lossy_threshold": 0.5, "lossless": True}, "lossy_threshold"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": TokenPrompt(())}, "prompt"),
        ({"prompt": TokenPrompt((259,))}, "prompt"),
        ({"prompt": "x" * 32}, "prompt"),
        ({"prompt": "x" * (16 * 32 + 1)}, "prompt"),
        ({"prompt": ChatPrompt(())}, "messages"),
        ({"prompt": ChatPrompt((ChatMessage("user", "x" * 32),))}, "messages"),
        ({"prompt": ChatPrompt((ChatMessage("user", "x" * (16 * 32)),))}, "messages"),
        ({"prompt": ChatPrompt((ChatMessage("", "a"),))}, "messages"),
    ],
)
async def test_bad_values(directory, options, field):
    with pytest.raises(InvalidField) as refused:
        await plan(directory, **options)
    assert refused.value.field == field


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "options",
    [
        {"grammar": "g"},
        {"grammar": ""},
        {"json_schema": "{}"},
        {"adapter": "a"},
        {"lossy_threshold": 0.5},
    ],
)
async def test_unsupported_options(directory, options):
    with pytest.raises(Unsupported, match=next(iter(options))):
        await plan(directory, **options)


@pytest.mark.asyncio
async def test_a_limit_is_told(directory):
    with pytest.raises(InvalidField, match=r"max_tokens must be a whole .* from 1 to 2\^31 - 1"):
        await plan(directory, max_tokens=2**32 - 1)


ALL_BUT_EOS = tuple(token for token in range(259) if token != 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", [{}, {"ignore_eos": True, "stop_token_ids": tuple(range(259))}])
async def test_min_tokens_must_leave_a_token(directory, ends):
    options = {"stop_token_ids": ALL_BUT_EOS, **ends}
    with pytest.raises(InvalidField, match="fewer ids than all 259") as refused:
        await plan(directory, min_tokens=1, **options)
    assert refused.value.field == "stop_token_ids"
    assert (await plan(directory, **options)).params.stop_token_ids == options["stop_token_ids"]


@pytest.mark.asyncio
async def test_min_tokens_with_one_token_left(directory):
    options = {"min_tokens": 1, "stop_token_ids": ALL_BUT_EOS}
    assert (await plan(directory, ignore_eos=True, **options)).params.min_tokens == 1
    assert await plan(directory, min_tokens=1, stop_token_ids=ALL_BUT_EOS[1:])


@pytest.mark.asyncio
async def test_a_bias_on_every_token_is_allowed(directory):
    bias = dict.fromkeys(range(259), -1000.0)
    assert (await plan(directory, logit_bias=bias, min_tokens=1)).params.logit_bias == bias


@pytest.mark.asyncio
async def test_templates_run_beside_the_event_loop(directory):
    class Watched(ChatTemplate):
        def render(self, messages):
            threads.append(threading.current_thread())
            return super().render(messages)

    threads = []
    chat = GenerateRequest(ChatPrompt((ChatMessage("user", "a"),)))
    await Planner(Tokenizer(directory), Watched(directory), Speculation.AUTO).plan(chat, MODEL)
    assert threads and threading.main_thread() not in threads


@pytest.mark.asyncio
async def test_unknown_model(directory):
    assert await plan(directory, model="tiny")
    with pytest.raises(InvalidField, match="model must be tiny or empty") as refused:
        await plan(directory, model="huge")
    assert refused.value.field == "model"


@pytest.mark.asyncio
async def test_the_answer_is_cut_to_the_context(directory):
    made = await plan(directory, "x" * 31, max_tokens=50, min_tokens=40)
    assert (made.params.max_tokens, made.params.min_tokens) == (1, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("top_k", [259, 10_000_000, 2**62])
async def test_top_k_of_everything_is_off(directory, top_k):
    assert (await plan(directory, top_k=top_k)).params.top_k == 0


OFF, SUFFIX, MODEL_ONLY, AUTO = Speculation


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("server", "asked", "effective"),
    [
        (OFF, OFF, OFF),
        (OFF, SUFFIX, OFF),
        (OFF, MODEL_ONLY, OFF),
        (OFF, AUTO, OFF),
        (SUFFIX, OFF, OFF),
        (SUFFIX, SUFFIX, SUFFIX),
        (SUFFIX, MODEL_ONLY, OFF),
        (SUFFIX, AUTO, SUFFIX),
        (MODEL_ONLY, OFF, OFF),
        (MODEL_ONLY, SUFFIX, OFF),
        (MODEL_ONLY, MODEL_ONLY, MODEL_ONLY),
        (MODEL_ONLY, AUTO, MODEL_ONLY),
        (AUTO, OFF, OFF),
        (AUTO, SUFFIX, SUFFIX),
        (AUTO, MODEL_ONLY, MODEL_ONLY),
        (AUTO, AUTO, AUTO),
    ],
)
async def test_guesses_come_from_where_both_allow(directory, server, asked, effective):
    request = GenerateRequest(TextPrompt("a"), GenerateOptions(speculation=asked))
    assert (await planner(directory, server).plan(request, MODEL)).speculation is effective


@pytest.mark.asyncio
@pytest.mark.parametrize("server", Speculation)
async def test_a_request_that_does_not_say_takes_what_the_server_allows(directory, server):
    assert (await plan(directory, speculation=server)).speculation is server
