"""What a gateway's metrics say at a moment, and when they come to say something else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from foredraft.cli.faults import CommandError

RUNNING, WAITING = "foredraft_requests_running", "foredraft_requests_waiting"
FREE_BLOCKS = "foredraft_free_kv_blocks"
_UP, _ACCEPTED = "foredraft_workers_up", "foredraft_accepted_tokens_total"
_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 60.0


class Reading:
    """All samples of one look; those that differ only in labels are added up."""

    def __init__(self, text: str) -> None:
        self._samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def sum(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        wanted = (labels or {}).items()
        return sum(v for n, found, v in self._samples if n == name and wanted <= found.items())

    def up(self, kind: str) -> float:
        """Workers of this kind that are connected and serve."""
        return self.sum(_UP, {"kind": kind})

    @property
    def accepted(self) -> float:
        """Guesses that became tokens of answers, up to now."""
        return self.sum(_ACCEPTED)


class Gauges:
    def __init__(self, session: aiohttp.ClientSession, http_address: str) -> None:
        self._session = session
        self._url = f"http://{http_address}/metrics"

    async def read(self) -> Reading:
        async with self._session.get(self._url) as response:
            return Reading(await response.text())

    async def until(self, what: str, holds: Callable[[Reading], bool]) -> float:
        """When it is first seen that ``holds`` is true, on `time.monotonic`'s clock.

        Raises:
            CommandError: that takes a minute; ``what`` says what is waited for.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not holds(await self.read()):  # noqa: ASYNC110 -- nobody is told
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise CommandError(f"after {_PATIENCE_SECONDS:g} s still not: {what}") from None
        return time.monotonic()
