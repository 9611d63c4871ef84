"""An answer while it is streamed: what both clients gather from the messages of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.results import Delta, Result, Stats, TokenLogprob
from foredraft.wire.codec import generate as codec
from foredraft.wire.errors import SEED_KEY, TRACE_ID_KEY


class Answer:
    """Adds up deltas; has a result once the last message came or the user cancelled."""

    def __init__(self) -> None:
        self.result: Result | None = None
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None

    def add(self, wire: Any) -> Delta:
        """Take in one message of the stream."""
        delta = codec.decode_delta(wire)
        self._pieces.append(delta.text)
        self._token_ids += delta.token_ids
        if delta.logprobs is not None:
            self._logprobs = (self._logprobs or []) + delta.logprobs
        if codec.is_last(wire):
            self.result = codec.decode_last(wire, self._whole())
        return delta

    def cancel(self, metadata: Mapping[str, Any]) -> None:
        """The user wants no more: the result is what was delivered.

        ``metadata`` is the initial metadata of the call, if the server has sent it.
        """
        if self.result is not None:
            return
        whole = self._whole()
        self.result = Result(
            text=whole.text,
            token_ids=whole.token_ids,
            finish_reason="cancelled",
            seed=int(metadata.get(SEED_KEY, 0)),
            trace_id=metadata.get(TRACE_ID_KEY, ""),
            stats=Stats(completion_tokens=len(whole.token_ids)),
            logprobs=whole.logprobs,
        )

    @property
    def started(self) -> bool:
        """At least one message came."""
        return bool(self._pieces)

    def finished(self) -> Result:
        """Raises RuntimeError while the answer goes on."""
        if self.result is None:
            raise RuntimeError("the result is there only after the last delta")
        return self.result

    def _whole(self) -> Delta:
        return Delta("".join(self._pieces), list(self._token_ids), self._logprobs)
