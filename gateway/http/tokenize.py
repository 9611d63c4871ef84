"""POST /tokenize and POST /detokenize, with the fields that vLLM's have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from foredraft.call import read_text
from foredraft.limits import check_count
from foredraft.params import InvalidField, Range, check_tokens
from foredraft.request import ChatMessage, ChatPrompt, Prompt, TextPrompt
from foredraft.wire.messages import ModelInfo
from gateway.http.body import Bodies
from gateway.http.chat_body import read_messages
from gateway.http.fields import Fields, read_flag
from gateway.http.generation import check_model
from gateway.http.json_text import write
from gateway.http.options import read_model
from gateway.intake import Intake
from gateway.plan import Planner
from gateway.tokenizer import Tokenizer

# What a chat's prompt always is here, as the chat endpoint makes it.
_FIXED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
_TOKEN = Range(0, 2**31 - 1)


class Tokenize:
    def __init__(
        self, intake: Intake, planner: Planner, tokenizer: Tokenizer, bodies: Bodies
    ) -> None:
        self._intake = intake
        self._planner = planner
        self._tokenizer = tokenizer
        self._bodies = bodies

    async def tokenize(self, request: web.Request) -> web.Response:
        """Token ids as an answering endpoint takes them, so by default without special tokens."""
        model = self._intake.model()
        asked = await self._bodies.read(request, lambda fields: _read_asked(fields, model))
        tokens = await self._planner.encode(asked.prompt, model, special=asked.special)
        text = await write(lambda: self._listed(tokens, model, asked.texts), len(tokens))
        return web.json_response(text=text)

    async def detokenize(self, request: web.Request) -> web.Response:
        """The text of token ids, special tokens included."""
        model = self._intake.model()
        tokens = await self._bodies.read(request, lambda fields: _read_tokens(fields, model))
        return web.json_response({"prompt": self._tokenizer.decode(tokens, special=True)})

    def _listed(self, tokens: tuple[int, ...], model: ModelInfo, texts: bool) -> dict[str, Any]:
        strings = [self._token(token) for token in tokens] if texts else None
        body = {"count": len(tokens), "max_model_len": model.context_length, "tokens": tokens}
        return body | {"token_strs": strings}

    def _token(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Asked:
    prompt: Prompt
    special: bool
    texts: bool


def _read_asked(fields: Fields, model: ModelInfo) -> _Asked:
    check_model(read_model(fields), model)
    prompt = _prompt(fields)
    special = fields.read("add_special_tokens", read_flag, False)
    texts = fields.read("return_token_strs", read_flag, False)
    fields.end()
    return _Asked(prompt, special, texts)


def _read_tokens(fields: Fields, model: ModelInfo) -> tuple[int, ...]:
    check_model(read_model(fields), model)
    tokens = fields.required("tokens", _list)
    fields.end()
    most = f"tokens (the context of {model.model_id})"
    check_count("tokens", tokens, model.context_length, most)
    read = tuple(_TOKEN.read("tokens", token) for token in tokens)
    if read:
        check_tokens("tokens", read, model.vocab_size)
    return read


def _prompt(fields: Fields) -> Prompt:
    if "messages" not in fields:
        return TextPrompt(fields.required("prompt", read_text))
    if "prompt" in fields:
        raise InvalidField("prompt", "absent when there are messages")
    fields.refuse(_FIXED)
    messages = fields.required("messages", read_messages)
    return ChatPrompt(tuple(ChatMessage(**message) for message in messages))


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidField(name, f"a list of token ids, each {_TOKEN}")
    return value
