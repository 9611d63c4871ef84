"""Who is let in: API keys from a file, compared in constant time, never shown."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from foredraft.config import SettingError
from foredraft.wire.errors import Unauthenticated

_SCHEME = "bearer"


class Keys:
    """Keys by their digests: comparing those tells neither a key's beginning nor its length."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """One key per line; empty lines and lines that begin with # do not count.

        No error holds a key.

        Raises:
            SettingError: the file cannot be read, holds no key or something that is none.
        """
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "keys must be printable ASCII"
            raise SettingError(f"{path}: {reason}") from None
        keys: list[str] = []
        for number, line in enumerate(lines, start=1):
            key = line.strip()
            if not key or key.startswith("#"):
                continue
            if not key.isprintable() or " " in key:
                raise SettingError(f"{path}, line {number}: a key is printable and has no spaces")
            keys.append(key)
        if not keys:
            raise SettingError(f"{path} holds no key")
        return cls(keys)

    def check(self, authorization: str | None) -> int:
        """Which key an ``authorization: Bearer KEY`` holds, as a number.

        Raises:
            Unauthenticated: it holds none of them.
        """
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip())
        # Every key is looked at, so that the time does not tell which one was nearly hit.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != _SCHEME or True not in matches:
            raise Unauthenticated("authorization must be Bearer and a key that is known here")
        return matches.index(True)

    def digest(self, number: int) -> bytes:
        """What is kept of the key with that number."""
        return self._digests[number]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
