"""One request while it is being answered: its journal, its text, its news for the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from foredraft.params import FinishReason
from foredraft.results import Delta, Result, Stats, TokenLogprob, TopLogprob
from foredraft.wire.messages import Commit, OpenSequence, PromptLogprobs, TokenLogprobs
from gateway.journal import Journal
from gateway.metrics import RequestMeter
from gateway.plan import Plan
from gateway.tally import Tally
from gateway.text_stream import TextStream
from gateway.trace import Trace


class Request:
    """Commits go in by `deliver`, news come out by `news`; between them is one pending delta.

    A client that reads slowly gets larger deltas: what waits for it is never more than its
    answer, and steps never wait for it.
    """

    def __init__(
        self,
        seq_id: int,
        incarnation: int,
        plan: Plan,
        decode: Callable[[Sequence[int]], str],
        trace: Trace,
    ) -> None:
        self.seq_id = seq_id
        self.incarnation = incarnation
        self.verify_worker = 0
        self._begun_at = -1  # the journal's position when it last began anew
        self._in_vain = 0
        self.settled = False  # it stays at its worker though that one is ill
        self.plan = plan
        self.trace = trace
        self.journal = Journal(plan.prompt)
        self.finish: FinishReason | None = None
        self.meter: RequestMeter | None = None
        self._text = TextStream(decode, plan.stops)
        self._tally = Tally(len(plan.prompt))
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._pending_text = ""
        self._pending_tokens: list[int] = []
        self._pending_logprobs: list[TokenLogprob] = []
        self._scores: PromptLogprobs | None = None
        self._scored = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self.finish is not None or self._error is not None

    def begin_anew(self) -> int:
        """From now on what workers say of the sequence as it was is late, and dropped.

        Returns how many times in a row it has begun anew and then got no further.
        """
        self.incarnation += 1
        self.settled = False
        further = self.journal.position > self._begun_at
        self._begun_at = self.journal.position
        self._in_vain = 0 if further else self._in_vain + 1
        return self._in_vain

    def leave(self) -> None:
        """Begin anew at another worker, because its own is ill, and stay there.

        Where all workers are merely slow it would else go from one to the other and get nowhere.
        """
        self.incarnation += 1
        self.settled = True

    def opening(self) -> OpenSequence:
        """The sequence as it stands now."""
        return OpenSequence(
            seq_id=self.seq_id,
            incarnation=self.incarnation,
            prompt=self.plan.prompt,
            params=self.plan.params,
            committed=tuple(self.journal.committed),
            choice=self.plan.choice,
            speculation=self.plan.speculation,
            traceparent=self.trace.parent,
            verify_worker=self.verify_worker,
            score_prompt=self._to_score,
            tenant=self.plan.tenant,
        )

    @property
    def _to_score(self) -> bool:
        """The first choice scores the prompt for all, and its first commit tells the scores."""
        return self.plan.score_prompt and self.plan.choice == 0 and self._scores is None

    def deliver(self, commit: Commit) -> None:
        """Take in a commit that the journal has accepted."""
        room = self.plan.params.max_tokens - self._tally.delivered
        text, kept = self._text.feed(commit.tokens[:room])
        self._tally.add(commit, kept)
        if self._text.stopped:
            self.finish = FinishReason.STOP
        elif commit.finish is not None and len(commit.tokens) <= room:
            self.finish = commit.finish
        elif kept >= room:
            self.finish = FinishReason.LENGTH
        if self.finish is not None and not self._text.stopped:
            text += self._text.finish()
        self._measure(commit, kept)
        self._pending_text += text
        self._pending_tokens += commit.tokens[:kept]
        self._scores = self._scores or commit.prompt
        self._scored.set()
        if commit.logprobs:
            self._pending_logprobs += _logprobs(commit, kept)
        self._changed.set()

    def _measure(self, commit: Commit, kept: int) -> None:
        if self.meter is not None:
            self.meter.delivered(commit, kept)
            if self.finish is not None:
                self.meter.end(self.finish.name.lower())

    def fail(self, error: Exception) -> None:
        """End the request with an error, unless it has ended."""
        if not self.ended:
            self._error = error
            self._changed.set()
            self._scored.set()

    async def news(self) -> Delta:
        """What came since the last call; waits until something did.

        Raises:
            Exception: what `fail` was given, after all that came before it.
        """
        await self._changed.wait()
        if self._error is None:
            self._changed.clear()
        elif not self._pending_tokens:
            raise self._error
        delta = Delta(
            self._pending_text,
            self._pending_tokens,
            self._pending_logprobs if self.plan.params.logprobs is not None else None,
        )
        self._pending_text, self._pending_tokens, self._pending_logprobs = "", [], []
        return delta

    async def scored(self) -> None:
        """Wait for the prompt's scores.

        Raises:
            Exception: what `fail` was given before they came.
        """
        await self._scored.wait()
        if self._scores is None and self._error is not None:
            raise self._error

    @property
    def scores(self) -> PromptLogprobs:
        """Of the prompt's tokens but the first; there once the first commit is.

        Raises:
            ValueError: they never came, or are not as many as the prompt has.
        """
        if self._scores is None or len(self._scores.chosen) != len(self.plan.prompt) - 1:
            raise ValueError("the target did not score the prompt")
        return self._scores

    def stats(self) -> Stats:
        """What was delivered up to now, and what speculation did for it."""
        return self._tally.stats()

    def result(self, whole: Delta, model: str) -> Result:
        """The answer of a finished request; ``whole`` is the sum of its deltas."""
        if self.finish is None:
            raise ValueError("the request has not finished")
        return Result(
            text=whole.text,
            token_ids=whole.token_ids,
            finish_reason=self.finish.name.lower(),
            seed=self.plan.params.seed,
            trace_id=self.trace.trace_id,
            stats=self.stats(),
            logprobs=whole.logprobs,
            model=model,
        )


def _logprobs(commit: Commit, kept: int) -> list[TokenLogprob]:
    pairs = zip(commit.tokens[:kept], commit.logprobs, strict=False)
    return [_logprob(token, entry) for token, entry in pairs]


def _logprob(token: int, entry: TokenLogprobs) -> TokenLogprob:
    best = zip(entry.top_ids, entry.top_values, strict=True)
    return TokenLogprob(token, entry.chosen, [TopLogprob(id_, value) for id_, value in best])
