"""Keys and rates as one question, the same at every door."""

from __future__ import annotations

import secrets
from hashlib import blake2b

from foredraft.config import GatewayConfig
from gateway.keys import Keys
from gateway.rates import Rates

AUTHORIZATION_KEY = "authorization"
NOBODY, EVERYBODY = 0, 1  # tenants: one whose texts are kept for no one; all, where keys are off
_ANYBODY = 0
_TENANT_BYTES = 8


class Access:
    """Without ``keys`` everybody is let in, as one caller; without ``rates`` at any rate."""

    def __init__(self, keys: Keys | None, rates: Rates | None) -> None:
        self._keys = keys
        self._rates = rates
        self._secret = secrets.token_bytes()

    def check(self, authorization: str | None) -> int:
        """The number of the caller with this ``authorization`` header or metadata.

        Raises:
            Unauthenticated: it holds no key that is known here.
        """
        return _ANYBODY if self._keys is None else self._keys.check(authorization)

    async def begin(self, authorization: str | None) -> int:
        """As `check`, for a call that is to be answered with text: it waits for its turn.

        Returns the caller's tenant number: the same for one key while this gateway lives, and
        nothing that a key or another gateway's number could be told from.

        Raises:
            Unauthenticated, Overloaded: it is turned away.
        """
        caller = self.check(authorization)
        if self._rates is not None:
            await self._rates.take_turn(caller)
        return EVERYBODY if self._keys is None else self._tenant(self._keys.digest(caller))

    def _tenant(self, digest: bytes) -> int:
        """A 64-bit number above EVERYBODY, from a hash under a secret of this process."""
        hashed = blake2b(digest, key=self._secret, digest_size=_TENANT_BYTES)
        return max(int.from_bytes(hashed.digest(), "big"), EVERYBODY + 1)


def make_access(config: GatewayConfig) -> Access:
    """What the settings ask for.

    Raises:
        SettingError: the file of keys cannot be used.
    """
    keys = None if config.api_keys is None else Keys.read(config.api_keys)
    return Access(keys, None if config.rate is None else Rates(config.rate))
