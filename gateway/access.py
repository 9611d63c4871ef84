"""Keys and rates as one question, the same at every door."""

from __future__ import annotations

from foredraft.config import GatewayConfig
from gateway.keys import Keys
from gateway.rates import Rates

AUTHORIZATION_KEY = "authorization"
_ANYBODY = 0


class Access:
    """Without ``keys`` everybody is let in, as one caller; without ``rates`` at any rate."""

    def __init__(self, keys: Keys | None, rates: Rates | None) -> None:
        self._keys = keys
        self._rates = rates

    def check(self, authorization: str | None) -> int:
        """The number of the caller with this ``authorization`` header or metadata.

        Raises:
            Unauthenticated: it holds no key that is known here.
        """
        return _ANYBODY if self._keys is None else self._keys.check(authorization)

    async def begin(self, authorization: str | None) -> None:
        """As `check`, for a call that is to be answered with text: it waits for its turn.

        Raises:
            Unauthenticated, Overloaded: it is turned away.
        """
        caller = self.check(authorization)
        if self._rates is not None:
            await self._rates.take_turn(caller)


def make_access(config: GatewayConfig) -> Access:
    """What the settings ask for.

    Raises:
        SettingError: the file of keys cannot be used.
    """
    keys = None if config.api_keys is None else Keys.read(config.api_keys)
    return Access(keys, None if config.rate is None else Rates(config.rate))
