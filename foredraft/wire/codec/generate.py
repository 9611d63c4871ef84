"""Codec of protos/foredraft/v1/generate.proto."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from foredraft.limits import (
    MAX_LOGIT_BIASES,
    MAX_MESSAGES,
    MAX_PROMPT_TOKENS,
    MAX_STOP_TOKEN_IDS,
    check_count,
)
from foredraft.params import MAX_STOP_STRINGS, FinishReason, Speculation
from foredraft.request import (
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from foredraft.results import Delta, Model, Result, Stats, TokenLogprob, TopLogprob
from foredraft.v1 import common_pb2
from foredraft.v1 import generate_pb2 as pb
from foredraft.wire.codec.common import (
    decode_enum,
    decode_finish,
    decode_model,
    decode_tokens,
    encode_model,
)
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import ModelInfo

_SCALARS = tuple(
    option.name
    for option in fields(GenerateOptions)
    if option.name not in ("logit_bias", "stop", "stop_token_ids", "speculation")
)


def encode_request(request: GenerateRequest) -> pb.GenerateRequest:
    """``request`` holds values that were checked, as `foredraft.call` makes it."""
    wire = pb.GenerateRequest(model=request.model)
    _encode_prompt(wire, request.prompt)
    _encode_options(wire.params, request.options)
    return wire


def decode_request(wire: pb.GenerateRequest) -> GenerateRequest:
    return GenerateRequest(_decode_prompt(wire), _decode_options(wire.params), wire.model)


def encode_stream_request(request: GenerateRequest) -> pb.GenerateStreamRequest:
    return pb.GenerateStreamRequest(request=encode_request(request))


def decode_stream_request(wire: pb.GenerateStreamRequest) -> GenerateRequest:
    return decode_request(wire.request)


def encode_result(result: Result) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        text=result.text,
        token_ids=result.token_ids,
        finish_reason=_encode_finish(result.finish_reason),
        seed=result.seed,
        trace_id=result.trace_id,
        stats=_encode_stats(result.stats),
        logprobs=_encode_logprobs(result.logprobs),
        model=result.model,
    )


def decode_result(wire: pb.GenerateResponse) -> Result:
    return Result(
        text=wire.text,
        token_ids=list(wire.token_ids),
        finish_reason=_decode_finish(wire.finish_reason),
        seed=wire.seed,
        trace_id=wire.trace_id,
        stats=_decode_stats(wire.stats),
        logprobs=_decode_logprobs(wire.logprobs),
        model=wire.model,
    )


def encode_delta(delta: Delta) -> pb.GenerateStreamResponse:
    return pb.GenerateStreamResponse(
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=_encode_logprobs(delta.logprobs),
    )


def encode_last(delta: Delta, result: Result) -> pb.GenerateStreamResponse:
    """The last message of a stream: its delta, and all of the result but what was streamed."""
    wire = encode_delta(delta)
    wire.finish_reason = _encode_finish(result.finish_reason)
    wire.seed = result.seed
    wire.trace_id = result.trace_id
    wire.stats.CopyFrom(_encode_stats(result.stats))
    wire.model = result.model
    return wire


def decode_delta(wire: pb.GenerateStreamResponse) -> Delta:
    return Delta(wire.text, list(wire.token_ids), _decode_logprobs(wire.logprobs))


def is_last(wire: pb.GenerateStreamResponse) -> bool:
    return bool(wire.finish_reason)


def decode_last(wire: pb.GenerateStreamResponse, streamed: Delta) -> Result:
    """The result in a stream's last message; ``streamed`` is the sum of all deltas."""
    return Result(
        text=streamed.text,
        token_ids=streamed.token_ids,
        finish_reason=_decode_finish(wire.finish_reason),
        seed=wire.seed,
        trace_id=wire.trace_id,
        stats=_decode_stats(wire.stats),
        logprobs=streamed.logprobs,
        model=wire.model,
    )


def encode_models_request() -> pb.ListModelsRequest:
    return pb.ListModelsRequest()


def encode_models(models: Iterable[ModelInfo]) -> pb.ListModelsResponse:
    return pb.ListModelsResponse(models=[encode_model(model) for model in models])


def decode_models(wire: pb.ListModelsResponse) -> list[Model]:
    return [
        Model(
            model_id=model.model_id,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            eos_token_ids=list(model.eos_token_ids),
            dtype=model.dtype,
            tokenizer_hash=model.tokenizer_hash,
        )
        for model in map(decode_model, wire.models)
    ]


def _encode_prompt(wire: pb.GenerateRequest, prompt: Prompt) -> None:
    match prompt:
        case TextPrompt(text):
            wire.text = text
        case TokenPrompt(ids):
            wire.tokens.SetInParent()
            wire.tokens.ids.extend(ids)
        case ChatPrompt(messages):
            wire.chat.SetInParent()
            for message in messages:
                wire.chat.messages.add(role=message.role, content=message.content)


def _decode_prompt(wire: pb.GenerateRequest) -> Prompt:
    match wire.WhichOneof("prompt"):
        case "text":
            return TextPrompt(wire.text)
        case "tokens":
            check_count("prompt", wire.tokens.ids, MAX_PROMPT_TOKENS, "token ids")
            return TokenPrompt(decode_tokens("prompt", wire.tokens.ids))
        case "chat":
            check_count("messages", wire.chat.messages, MAX_MESSAGES, "messages")
            messages = (ChatMessage(m.role, m.content) for m in wire.chat.messages)
            return ChatPrompt(tuple(messages))
    raise BadMessage("prompt", "one of text, tokens, chat")


def _encode_options(wire: pb.GenerateParams, options: GenerateOptions) -> None:
    for name in _SCALARS:
        value = getattr(options, name)
        if value is not None:
            setattr(wire, name, value)
    wire.logit_bias.update(options.logit_bias)
    wire.stop.extend(options.stop)
    wire.stop_token_ids.extend(options.stop_token_ids)
    if options.speculation is not None:
        wire.speculation = common_pb2.Speculation.Name(options.speculation)  # type: ignore[assignment]


def _decode_options(wire: pb.GenerateParams) -> GenerateOptions:
    check_count("stop", wire.stop, MAX_STOP_STRINGS, "strings")
    check_count("stop_token_ids", wire.stop_token_ids, MAX_STOP_TOKEN_IDS, "token ids")
    check_count("logit_bias", wire.logit_bias, MAX_LOGIT_BIASES, "entries")
    scalars: dict[str, Any] = {
        name: getattr(wire, name) for name in _SCALARS if _present(wire, name)
    }
    speculation = wire.speculation
    return GenerateOptions(
        **scalars,
        logit_bias=MappingProxyType(dict(wire.logit_bias)),
        stop=tuple(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids),
        speculation=decode_enum("speculation", Speculation, speculation) if speculation else None,
    )


def _present(wire: pb.GenerateParams, name: str) -> bool:
    """Optional fields say so; for the others the empty value means that it is not there."""
    has_presence = wire.DESCRIPTOR.fields_by_name[name].has_presence
    return wire.HasField(name) if has_presence else bool(getattr(wire, name))


def _encode_finish(reason: str) -> Any:
    return int(FinishReason[reason.upper()])


def _decode_finish(value: int) -> str:
    finish = decode_finish(value)
    if finish is None:
        raise BadMessage("finish_reason", "one of stop, length, cancelled")
    return finish.name.lower()


def _encode_stats(stats: Stats) -> pb.GenerateStats:
    return pb.GenerateStats(
        steps=stats.steps,
        tokens_per_step=stats.tokens_per_step,
        accepted_by_depth=stats.accepted_by_depth,
        hit_steps=stats.hit_steps,
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        verified_nodes=stats.verified_nodes,
        cached_tokens=stats.cached_tokens,
    )


def _decode_stats(wire: pb.GenerateStats) -> Stats:
    return Stats(
        steps=wire.steps,
        tokens_per_step=wire.tokens_per_step,
        accepted_by_depth=list(wire.accepted_by_depth),
        hit_steps=wire.hit_steps,
        prompt_tokens=wire.prompt_tokens,
        completion_tokens=wire.completion_tokens,
        verified_nodes=wire.verified_nodes,
        cached_tokens=wire.cached_tokens,
    )


def _encode_logprobs(entries: list[TokenLogprob] | None) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token_id=entry.token_id,
            logprob=entry.logprob,
            top=[pb.TopLogprob(token_id=t.token_id, logprob=t.logprob) for t in entry.top],
        )
        for entry in entries or ()
    ]


def _decode_logprobs(wires: Iterable[pb.TokenLogprob]) -> list[TokenLogprob] | None:
    entries = [
        TokenLogprob(
            wire.token_id, wire.logprob, [TopLogprob(t.token_id, t.logprob) for t in wire.top]
        )
        for wire in wires
    ]
    return entries or None
