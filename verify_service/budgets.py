"""What each gateway allows its sequences; all of them share the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from foredraft.wire.messages import VerifyBudget

_NOTHING = VerifyBudget(max_nodes=0, max_hold_us=0, drafting=False)


class Budgets:
    """Of several gateways, the one with the most sequences says how steps are run."""

    def __init__(self) -> None:
        self._by_stream: dict[int, VerifyBudget] = {}

    def set(self, stream: int, budget: VerifyBudget) -> None:
        self._by_stream[stream] = budget

    def forget(self, stream: int) -> None:
        self._by_stream.pop(stream, None)

    def in_force(self, streams: Iterable[int]) -> VerifyBudget:
        """The budget for a step; ``streams`` names the stream of each sequence that is open."""
        if len(self._by_stream) > 1:
            for stream, _ in Counter(streams).most_common():
                if stream in self._by_stream:
                    return self._by_stream[stream]
        return next(iter(self._by_stream.values()), _NOTHING)
