"""POST /v1/chat/completions: the assistant's next turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft.results import Delta
from gateway.http.answer import Answer
from gateway.http.logprobs import LogprobWriter
from gateway.http.options import Asked
from gateway.request import Request
from gateway.tokenizer import Tokenizer

_ROLE = "assistant"


class ChatAnswer(Answer):
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(
        self, asked: Asked, requests: Sequence[Request], model_id: str, tokenizer: Tokenizer
    ) -> None:
        super().__init__(asked, requests, model_id)
        self._logprobs = LogprobWriter(tokenizer)

    def _choice(self, index: int, whole: Delta) -> dict[str, Any]:
        message = {"role": _ROLE, "content": whole.text, "refusal": None}
        logprobs = self._logprobs.chat(whole.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs}

    async def _beginning(self, index: int) -> list[dict[str, Any]]:
        role = {"role": _ROLE, "content": ""}
        return [{"index": index, "delta": role, "logprobs": None} | self._ending(index, None)]

    def _piece(self, index: int, delta: Delta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text or delta.token_ids else {}
        logprobs = self._logprobs.chat(delta.logprobs)
        return {"index": index, "delta": content, "logprobs": logprobs}
