"""Watches the steps of a verify worker and says how the next ones are to be run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from foredraft.policy.balance import FIRST_WAY, Balance, Way, Window
from foredraft.policy.promise import Promises

# After a change, for as long as both last: what is in flight was made the old way.
_SETTLING_STEPS, _SETTLING_MS = 4, 100.0
# Before steps with guesses that follow plain ones: drafters are told everything and take it in.
_WAKING_STEPS, _WAKING_MS = 512, 100.0
_READ_PER_MS = 16.0  # tokens that their model reads meanwhile
_LEAST_STEPS = 16  # of a window; less says too little
_RESTING_STEPS = 64  # of one of plain decoding that goes on: nothing is at stake
_LEAST_TOKENS, _LEAST_MS = 192, 150.0  # and of one in which steps differ by more than
_STEADY = 0.02  # of all its tokens, as a standard error
_MOST_LOST = 8.0  # tokens of each sequence that another way would be ahead by: no need for more
_SURE = 3.0  # standard errors that it would be ahead by
_LASTING_STEPS = 16  # in a row, of another size of batch: fewer are a load that comes or goes


@dataclass(slots=True)
class _Sums:
    """A window that has not ended.

    before_ms: time beyond what the way in force would have needed, until the window began.
    bound_ms: what they would have taken without guesses.
    lost: tokens of one sequence by which what it is compared with would be ahead.
    squares: of what each step lost.
    """

    before_ms: float = 0.0
    steps: int = 0
    tokens: int = 0
    tokens_each: float = 0.0  # as promised and usually kept
    milliseconds: float = 0.0
    bound_ms: float = 0.0
    lost: float = 0.0
    squares: float = 0.0

    def add(self, tokens_each: float, period_ms: float, plain_ms: float, rate: float) -> None:
        """``rate``: of what it is compared with."""
        lost = rate * period_ms - tokens_each
        self.steps += 1
        self.tokens_each += tokens_each
        self.milliseconds += period_ms
        self.bound_ms += plain_ms
        self.lost += lost
        self.squares += lost * lost

    @property
    def error(self) -> float:
        """Standard error of what was lost, as if steps did not depend on each other."""
        return math.sqrt(max(0.0, self.squares - self.lost * self.lost / self.steps))

    @property
    def bound(self) -> float:
        return self.steps / max(self.bound_ms, 1e-3)

    @property
    def is_long(self) -> bool:
        return (
            self.steps >= _LEAST_STEPS
            and self.tokens >= _LEAST_TOKENS
            and self.milliseconds >= _LEAST_MS
        )

    def is_clear(self, least_tokens: int) -> bool:
        """So few steps are enough: they are all alike, or another way is surely ahead."""
        if self.steps < _LEAST_STEPS or self.tokens < least_tokens:
            return False
        return self.error <= _STEADY * self.tokens_each or self.lost > _SURE * self.error


@dataclass(slots=True)
class _Size:
    """One size of batch: what is known of it, and the window that has begun."""

    balance: Balance
    sums: _Sums = field(default_factory=_Sums)


class Balancer:
    """Keeps a balance for each size of batch: 1, 2, 3 to 4, 5 to 8, ... sequences.

    Only steps with sequences that may speculate count, and of those only their tokens.

    way: how steps are run.
    awaited: how they are to be run once drafters are awake; else the same.
    """

    def __init__(self) -> None:
        self.way = self.awaited = FIRST_WAY
        self._sizes: dict[int, _Size] = {}
        self._size, self._now = -1, _Size(Balance())
        self._next_size, self._next_steps = -1, 0
        self._promises = Promises()
        self._pause_steps, self._pause_ms = _WAKING_STEPS, _WAKING_MS  # drafters read, too

    def stepped(
        self,
        sequences: int,
        speculating: int,
        tokens: int,
        promised: float,
        period_ms: float,
        plain_ms: float,
    ) -> Way:
        """After a step; returns the way for the next ones.

        Args:
            speculating: so many of its ``sequences`` may speculate; they got ``tokens``.
            promised: tokens beyond one for each that its guesses were thought to bring.
            period_ms: since the end of the step before; 0 if that is not known.
            plain_ms: what it would have taken without guesses.
        """
        if not speculating:
            return self.way
        size = (sequences - 1).bit_length()
        if size == self._size:
            self._next_steps = 0
        elif period_ms > 0.0 or not self._sizes:
            self._meet(size)
        if promised:
            self._promises = self._promises.after(promised, tokens - speculating)
        tokens_each = 1.0 + self._promises.kept * promised / speculating
        if self._pause_steps > 0:
            self._wait(tokens_each, period_ms if size == self._size else 0.0)
        elif period_ms > 0.0 and size == self._size:
            self._now.sums.tokens += tokens
            self._add(tokens_each, period_ms, plain_ms)
        return self.way

    @property
    def plain_rate(self) -> float:
        """Tokens per millisecond of a sequence that is decoded plainly; 0 if that is not known."""
        return self._now.balance.plain_rate

    def told(self, tokens: int) -> None:
        """Drafters that are to wake up have so many tokens to read."""
        self._pause_ms += tokens / _READ_PER_MS

    def _meet(self, size: int) -> None:
        """A step was of another size; the first one ever is looked at at once."""
        self._next_steps = self._next_steps + 1 if size == self._next_size else 1
        self._next_size = size
        if self._next_steps >= _LASTING_STEPS or not self._sizes:
            self._next_steps = 0
            self._look_at(size)

    def _look_at(self, size: int) -> None:
        """Go on with what is known of that size, or else with what others of them say."""
        known = self._sizes.get(size)
        if known is None:
            nearest = min(self._sizes, key=lambda other: abs(other - size), default=None)
            if nearest is None:
                balance = Balance.first(self.way)
            else:
                balance = self._sizes[nearest].balance.for_size(more=size > nearest)
            known = self._sizes[size] = _Size(balance)
        elif known.balance.on_trial:  # which would need a whole window
            known = self._sizes[size] = _Size(known.balance.untried())
        self._size, self._now = size, known
        self._go(known.balance.way)

    def _wait(self, tokens_each: float, period_ms: float) -> None:
        self._pause_steps -= 1
        self._pause_ms -= period_ms
        rate = self._now.balance.rate
        if rate > 0.0 and period_ms > 0.0:
            self._now.sums.before_ms += period_ms - tokens_each / rate
        if self._pause_ms <= 0.0:
            self._pause_steps = 0
        if self._pause_steps == 0 and self.way is not self.awaited:
            self.way = self.awaited
            self._settle()

    def _add(self, tokens_each: float, period_ms: float, plain_ms: float) -> None:
        now = self._now
        sums, balance = now.sums, now.balance
        # At first guesses are compared with what plain decoding seems to bring.
        rate = balance.rival_rate or 1.0 / max(plain_ms, 1e-3)
        sums.add(tokens_each, period_ms, plain_ms, rate)
        if balance.rests and sums.steps % _RESTING_STEPS:
            return
        plain = self.way is Way.PLAIN
        clear = balance.is_asked and sums.is_clear(0 if plain else _LEAST_TOKENS)
        if clear or sums.is_long or (sums.lost > _MOST_LOST and not plain):
            window = Window(
                self.way, sums.tokens_each, sums.milliseconds, sums.bound, sums.before_ms
            )
            now.balance, now.sums = balance.after(window), _Sums()
            self._go(now.balance.way)

    def _go(self, way: Way) -> None:
        if way is self.awaited:
            return
        wakes = self.way is Way.PLAIN and way is not Way.PLAIN
        self.awaited = way
        if wakes:
            self._pause_steps, self._pause_ms = _WAKING_STEPS, _WAKING_MS
        else:
            self.way = way
            self._settle()

    def _settle(self) -> None:
        self._pause_steps, self._pause_ms = _SETTLING_STEPS, _SETTLING_MS
