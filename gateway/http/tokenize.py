"""POST /tokenize and POST /detokenize, with the fields that vLLM's have."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from foredraft.call import read_text
from foredraft.params import InvalidField, Range, check_tokens
from foredraft.request import ChatMessage, ChatPrompt, Prompt, TextPrompt
from gateway.http.chat_body import read_messages
from gateway.http.fields import Fields, read_body, read_flag
from gateway.http.generation import check_model
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
    def __init__(self, intake: Intake, planner: Planner, tokenizer: Tokenizer) -> None:
        self._intake = intake
        self._planner = planner
        self._tokenizer = tokenizer

    async def tokenize(self, request: web.Request) -> web.Response:
        """Token ids as an answering endpoint takes them, so by default without special tokens."""
        fields = await read_body(request)
        model = self._intake.model()
        check_model(read_model(fields), model)
        prompt = _prompt(fields)
        special = fields.read("add_special_tokens", read_flag, False)
        texts = fields.read("return_token_strs", read_flag, False)
        fields.end()
        tokens = await self._planner.encode(prompt, model, special=special)
        strings = [self._token(token) for token in tokens] if texts else None
        body = {"count": len(tokens), "max_model_len": model.context_length, "tokens": tokens}
        return web.json_response(body | {"token_strs": strings})

    async def detokenize(self, request: web.Request) -> web.Response:
        """The text of token ids, special tokens included."""
        fields = await read_body(request)
        model = self._intake.model()
        check_model(read_model(fields), model)
        tokens = fields.required("tokens", _tokens)
        fields.end()
        check_tokens("tokens", tokens, model.vocab_size)
        return web.json_response({"prompt": self._tokenizer.decode(tokens, special=True)})

    def _token(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


def _prompt(fields: Fields) -> Prompt:
    if "messages" not in fields:
        return TextPrompt(fields.required("prompt", read_text))
    fields.refuse(_FIXED)
    messages = fields.required("messages", read_messages)
    return ChatPrompt(tuple(ChatMessage(**message) for message in messages))


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidField(name, f"a list of token ids, each {_TOKEN}")
    return tuple(_TOKEN.read(name, token) for token in value)
