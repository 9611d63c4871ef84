"""An answer in OpenAI's shape: whole or in events. Completions and chats fill in their parts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from foredraft.params import FinishReason
from foredraft.results import Delta
from gateway.http.json_text import write
from gateway.http.news import News, all_news
from gateway.http.options import Asked
from gateway.request import Request

Json = dict[str, Any]


class Answer(ABC):
    """Choice ``index`` is answer number index % n to prompt number index // n."""

    id_prefix: str
    whole_object: str
    event_object: str

    def __init__(self, asked: Asked, requests: Sequence[Request], model_id: str) -> None:
        self._asked = asked
        self._requests = requests
        self._model_id = model_id
        self._id = f"{self.id_prefix}-{requests[0].trace.trace_id}"
        self._created = int(time.time())
        self._delivered = 0
        self._ended: set[int] = set()

    async def whole(self) -> str:
        """The body of a response that is not streamed."""
        deltas: list[list[Delta]] = [[] for _ in self._requests]
        finishes: dict[int, FinishReason] = {}
        async with aclosing(all_news(self._requests)) as pieces:
            async for news in pieces:
                self._count(news)
                deltas[news.index].append(news.delta)
                if news.finish is not None:
                    finishes[news.index] = news.finish
        shown = self._asked.requests[0].options.logprobs
        values = 0 if shown is None else self._delivered * (1 + shown)
        values += sum(request.plan.prompt_logprobs for request in self._requests)
        return await write(lambda: self._body(deltas, finishes), values)

    def _body(self, deltas: list[list[Delta]], finishes: dict[int, FinishReason]) -> Json:
        choices = [
            self._choice(index, _sum(parts)) | self._ending(index, finishes[index])
            for index, parts in enumerate(deltas)
        ]
        return self._envelope(self.whole_object, choices) | {"usage": self._usage()}

    async def events(self) -> AsyncGenerator[Json]:
        """The events of a response that is streamed, but for the mark of its end."""
        streaming = self._asked.streaming
        begun: set[int] = set()
        async with aclosing(all_news(self._requests)) as pieces:
            async for news in pieces:
                self._count(news)
                choices = [] if news.index in begun else await self._beginning(news.index)
                begun.add(news.index)
                choices += self._pieces(news)
                for choice in choices:
                    event = self._envelope(self.event_object, [choice])
                    if streaming.continuous:
                        event["usage"] = self._usage()
                    elif streaming.usage:
                        event["usage"] = None
                    yield event
        if streaming.usage:
            yield self._envelope(self.event_object, []) | {"usage": self._usage()}

    @abstractmethod
    def _choice(self, index: int, whole: Delta) -> Json:
        """A choice of a whole answer, without its ending."""

    @abstractmethod
    async def _beginning(self, index: int) -> list[Json]:
        """Choices that stand before the first piece of a streamed choice."""

    @abstractmethod
    def _piece(self, index: int, delta: Delta) -> Json:
        """A choice of an event, without its ending."""

    def _pieces(self, news: News) -> list[Json]:
        """Text that is still held back makes no event."""
        if not news.delta.text and not news.delta.logprobs and news.finish is None:
            return []
        ending = self._ending(news.index, news.finish)
        return [self._piece(news.index, news.delta) | ending]

    def _ending(self, index: int, finish: FinishReason | None) -> Json:
        if finish is None:
            return {"finish_reason": None}
        seed = self._requests[index].plan.params.seed
        return {"finish_reason": finish.name.lower(), "seed": seed}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model_id,
            "choices": choices,
        }

    def _count(self, news: News) -> None:
        self._delivered += len(news.delta.token_ids)
        if news.finish is not None:
            self._ended.add(news.index)

    def _usage(self) -> Json:
        """Tokens so far; of the guesses, those of choices that have ended."""
        firsts = self._requests[:: self._asked.choices]  # each computes the prompt for its others
        prompts = sum(len(first.plan.prompt) for first in firsts)
        cached = sum(first.stats().cached_tokens for first in firsts)
        stats = [self._requests[index].stats() for index in self._ended]
        accepted = sum(sum(each.accepted_by_depth) for each in stats)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": self._delivered,
            "total_tokens": prompts + self._delivered,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": sum(each.verified_nodes for each in stats) - accepted,
            },
        }


def _sum(deltas: Iterable[Delta]) -> Delta:
    parts = list(deltas)
    logprobs = [entry for delta in parts for entry in delta.logprobs or ()]
    return Delta(
        text="".join(delta.text for delta in parts),
        token_ids=[token for delta in parts for token in delta.token_ids],
        logprobs=None if parts[0].logprobs is None else logprobs,
    )
