"""Log-probabilities in the two shapes that OpenAI's endpoints have."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from foredraft.results import TokenLogprob, TopLogprob
from foredraft.wire.messages import PromptLogprobs
from gateway.tokenizer import Tokenizer


class LogprobWriter:
    """Of one choice: it counts the characters so far, as events continue one another."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self._characters = getincrementaldecoder("utf-8")("replace")  # one may need several tokens

    def completion(self, entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        """Columns; the chosen token is among the best of its place, as OpenAI has it."""
        if entries is None:
            return None
        ids = [entry.token_id for entry in entries]
        return {
            "tokens": [self._text(token) for token in ids],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": [self._advance(token) for token in ids],
        }

    def prompt(self, ids: Sequence[int], scores: PromptLogprobs) -> dict[str, Any]:
        """Columns of a prompt, as of an answer; nothing is known of its first token."""
        top = len(scores.top_ids) // max(1, len(scores.chosen))
        entries = [
            TokenLogprob(token, chosen, _best(scores, number * top, (number + 1) * top))
            for number, (token, chosen) in enumerate(zip(ids[1:], scores.chosen, strict=True))
        ]
        unknown = {"tokens": self._text(ids[0]), "text_offset": self._advance(ids[0])}
        rest = self.completion(entries) or {}
        return {name: [unknown.get(name), *column] for name, column in rest.items()}

    def chat(self, entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        """One object per token."""
        if entries is None:
            return None
        content = [
            self._entry(entry.token_id, entry.logprob)
            | {"top_logprobs": [self._entry(top.token_id, top.logprob) for top in entry.top]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Of tokens that look alike, the likeliest stands for all."""
        top: dict[str, float] = {}
        for token, value in [(t.token_id, t.logprob) for t in entry.top]:
            top.setdefault(self._text(token), value)
        top.setdefault(self._text(entry.token_id), entry.logprob)
        return top

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token)
        return {"token": self._text(token), "logprob": logprob, "bytes": list(raw)}

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def _advance(self, token: int) -> int:
        """The place of the character that a token begins with or goes on with."""
        at = self._offset
        self._offset += len(self._characters.decode(self._tokenizer.token_bytes(token)))
        return at


def joined(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    """Columns one after another; None if there are none of either."""
    if before is None or after is None:
        return before or after
    return {name: column + after[name] for name, column in before.items()}


def _best(scores: PromptLogprobs, start: int, end: int) -> list[TopLogprob]:
    pairs = zip(scores.top_ids[start:end], scores.top_values[start:end], strict=True)
    return [TopLogprob(token, value) for token, value in pairs]
