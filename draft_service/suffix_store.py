"""Texts of finished requests, kept for guesses in later requests of the same tenant.

Each tenant has one line of tokens, a request behind the other, and an index of its n-grams as in
`SuffixCache`. What is oldest goes first, token by token; what proved useful comes in anew with the
request that it was useful for. Texts are indexed in slices, so that nobody waits for a long one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from draft_service.suffix_cache import MAX_MATCH, Continuation
from foredraft.policy.bucket import Evidence

TENANTS = 16  # whose texts are kept at a time: those that finished a request last
SLICE = 256  # tokens that are indexed in one piece of work
NOBODY = 0  # a tenant
_GRAM = 4  # tokens: a shorter match with another text says too little
_VISITS = 8  # occurrences looked at
_GAP = -1  # between two requests
_NO_LINK = -1


class KeptText:
    """What is kept of one tenant: at most ``capacity`` tokens.

    Places count all tokens that ever came in, so that a place of a token that is gone never
    means another one.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._text = array("i")
        self._older = array("q")  # by token: the place of the last n-gram of the same hash
        self._newest: dict[int, int] = {}  # by n-gram: the place behind it
        self._base = 0  # place of what stands first in the arrays
        self._first = 0  # place of the first token that still counts

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def _end(self) -> int:
        return self._base + len(self._text)

    def append(self, tokens: Sequence[int]) -> None:
        """Take in a piece of a request; the oldest tokens make room."""
        for token in tokens:
            self._text.append(token)
            key = self._key(self._end)
            self._older.append(_NO_LINK if key is None else self._newest.get(key, _NO_LINK))
            if key is not None:
                self._newest[key] = self._end
        self._make_room(len(self) - self._capacity)

    def propose(self, tail: Sequence[int], width: int) -> list[Continuation]:
        """Up to ``width`` different tokens that followed the end of ``tail`` in other requests."""
        found: dict[int, Continuation] = {}
        for place in self._places(tail):
            token = self.follow(place)
            if token is not None:
                match = self._match_length(place, tail)
                if match >= _GRAM and (token not in found or match > found[token].match):
                    found[token] = Continuation(token, match, place, Evidence.ELSEWHERE)
        return sorted(found.values(), key=lambda c: (-c.match, -c.position))[:width]

    def follow(self, place: int) -> int | None:
        """The token at a place; None where a request ends, or if it is gone."""
        if not self._first <= place < self._end:
            return None
        token = self._text[place - self._base]
        return None if token == _GAP else token

    def _places(self, tail: Sequence[int]) -> Iterator[int]:
        place = self._newest.get(hash(tuple(tail[-_GRAM:])), _NO_LINK)
        for _ in range(_VISITS):
            if place <= self._first:
                return
            yield place
            place = self._older[place - 1 - self._base]

    def _match_length(self, place: int, tail: Sequence[int]) -> int:
        end = place - self._base
        longest = min(end, len(tail), MAX_MATCH)
        for back in range(1, longest + 1):
            if self._text[end - back] != tail[-back]:
                return back - 1
        return longest

    def _key(self, place: int) -> int | None:
        """Of the n-gram that ends before ``place``, if it lies in one request."""
        end = place - self._base
        gram = tuple(self._text[max(0, end - _GRAM) : end])
        return None if len(gram) < _GRAM or _GAP in gram else hash(gram)

    def _make_room(self, tokens: int) -> None:
        """Forget the oldest."""
        for place in range(self._first + 1, self._first + tokens + 1):
            key = self._key(place)
            if key is not None and self._newest.get(key) == place:
                del self._newest[key]
            self._first = place
        dead = self._first - self._base - _GRAM
        if dead > max(SLICE, self._capacity // 4):
            del self._text[:dead], self._older[:dead]
            self._base += dead


class SuffixStore:
    """The texts of all tenants: at most ``tokens`` of each, and of ``TENANTS`` of them.

    With 0 tokens it is off. Nothing is kept of NOBODY.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._kept: OrderedDict[int, KeptText] = OrderedDict()
        self._waiting: deque[tuple[int, Sequence[int]]] = deque()
        self._waiting_tokens = 0

    def __len__(self) -> int:
        """Tokens that are kept, those included that wait to be indexed."""
        return sum(map(len, self._kept.values())) + self._waiting_tokens

    @property
    def busy(self) -> bool:
        """True while texts wait to be indexed."""
        return bool(self._waiting)

    def of(self, tenant: int) -> KeptText | None:
        """What may be guessed from for a tenant, if anything is kept."""
        return self._kept.get(tenant)

    def keep(self, tenant: int, tokens: Sequence[int]) -> None:
        """Take in the end of a finished request; it is indexed later, by `work`."""
        if self._tokens == 0 or tenant == NOBODY:
            return
        text = (_GAP, *tokens[max(0, len(tokens) + 1 - self._tokens) :])
        self._waiting.append((tenant, text))
        self._waiting_tokens += len(text)
        while self._waiting_tokens > self._tokens:  # requests end faster than they are indexed
            self._waiting_tokens -= len(self._waiting.popleft()[1])

    def work(self) -> None:
        """Index one slice."""
        if not self._waiting:
            return
        tenant, text = self._waiting.popleft()
        piece, rest = text[:SLICE], text[SLICE:]
        if rest:
            self._waiting.appendleft((tenant, rest))
        self._waiting_tokens -= len(piece)
        kept = self._kept.get(tenant)
        if kept is None:
            kept = self._kept[tenant] = KeptText(self._tokens)
        self._kept.move_to_end(tenant)
        kept.append(piece)
        if len(self._kept) > TENANTS:
            self._kept.popitem(last=False)
