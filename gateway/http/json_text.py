"""JSON that is never in the way of other requests; read, it is refused where a name stands twice.

The library's quick decoder and encoder do not let go of the interpreter before they have come to
the end, so they get few values only. Many are read and written step by step, beside the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from json import scanner
from typing import Any, NoReturn

from gateway.http.errors import HttpFault

# Prompts of half a million token ids, all in all.
MAX_VALUES = 2**19
_FEW_VALUES = 2**17
_FEW_WRITTEN = 2**12


def parse(raw: bytes) -> Any:
    """What ``raw`` holds.

    Raises:
        HttpFault: it holds too many values.
        ValueError, RecursionError: it is no JSON.
    """
    count = _count(raw)
    if count > MAX_VALUES:
        text = f"the body has more than {MAX_VALUES} values (names and lists count, too)"
        raise HttpFault(413, text, "request_too_large")
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
    if count > _FEW_VALUES:
        decoder.scan_once = scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(raw.decode())


async def write(make: Callable[[], Any], values: int) -> str:
    """The text of what ``make`` makes, which has about so many values."""
    if values <= _FEW_WRITTEN:
        return json.dumps(make())
    return await asyncio.to_thread(lambda: "".join(json.JSONEncoder().iterencode(make())))


def _count(raw: bytes) -> int:
    """Values, names and lists; marks within texts count, too, but only if there are few of them."""
    count = _marks(raw)
    if count <= _FEW_VALUES:
        return count
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = bare.count(b'"') // 2
    if texts > MAX_VALUES:
        return texts
    return _marks(b"".join(bare.split(b'"')[::2]))


def _marks(raw: bytes) -> int:
    """What stands before every value but the first."""
    return sum(map(raw.count, (b",", b":", b"[", b"{")))


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) < len(members):
        raise ValueError("a name stands twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
