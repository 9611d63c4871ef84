"""POST /v1/completions: a text goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft.request import TextPrompt
from foredraft.results import Delta
from gateway.http.answer import Answer
from gateway.http.logprobs import LogprobWriter, joined
from gateway.http.options import Asked
from gateway.request import Request
from gateway.tokenizer import Tokenizer


class CompletionAnswer(Answer):
    id_prefix = "cmpl"
    whole_object = event_object = "text_completion"

    def __init__(
        self, asked: Asked, requests: Sequence[Request], model_id: str, tokenizer: Tokenizer
    ) -> None:
        super().__init__(asked, requests, model_id)
        self._tokenizer = tokenizer
        self._logprobs = [LogprobWriter(tokenizer) for _ in requests]

    def _choice(self, index: int, whole: Delta) -> dict[str, Any]:
        if not self._asked.echo:
            return self._piece(index, whole)
        echo, rest = self._echo(index), self._piece(index, whole)
        return rest | {
            "text": echo["text"] + rest["text"],
            "logprobs": joined(echo["logprobs"], rest["logprobs"]),
        }

    async def _beginning(self, index: int) -> list[dict[str, Any]]:
        if not self._asked.echo:
            return []
        if self._requests[index].plan.score_prompt:
            await self._first(index).scored()
        return [self._echo(index) | self._ending(index, None)]

    def _echo(self, index: int) -> dict[str, Any]:
        plan, logprobs = self._requests[index].plan, None
        if plan.score_prompt:
            logprobs = self._logprobs[index].prompt(plan.prompt, self._first(index).scores)
        return {"index": index, "text": self._prompt(index), "logprobs": logprobs}

    def _first(self, index: int) -> Request:
        """The first choice of the same prompt, which computes the prompt for the others."""
        return self._requests[index - index % self._asked.choices]

    def _piece(self, index: int, delta: Delta) -> dict[str, Any]:
        logprobs = self._logprobs[index].completion(delta.logprobs)
        return {"index": index, "text": delta.text, "logprobs": logprobs}

    def _prompt(self, index: int) -> str:
        prompt = self._asked.requests[index // self._asked.choices].prompt
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return self._tokenizer.decode(self._requests[index].plan.prompt)
