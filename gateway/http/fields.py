"""A JSON body, read field by field: nothing is ignored, null counts as absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from foredraft.params import InvalidField, Unsupported
from gateway.http.errors import HttpFault

T = TypeVar("T")


class Fields:
    """What is left of an object; ``path`` stands before the names in errors."""

    def __init__(self, body: Mapping[str, Any], path: str = "") -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def name(self, name: str) -> str:
        return f"{self._path}{name}"

    def take(self, name: str) -> Any:
        """The value as it stands, None if it is not there."""
        return self._left.pop(name, None)

    def read(self, name: str, read: Callable[[str, Any], T], default: T) -> T:
        """The value as ``read`` checks it."""
        value = self.take(name)
        return default if value is None else read(self.name(name), value)

    def required(self, name: str, read: Callable[[str, Any], T]) -> T:
        if name not in self._left:
            raise InvalidField(self.name(name), "there")
        return read(self.name(name), self.take(name))

    def take_all(self, names: frozenset[str]) -> dict[str, Any]:
        """Those of ``names`` that are there."""
        return {name: self.take(name) for name in sorted(names & self._left.keys())}

    def refuse(self, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
        """Take fields that ask for what is not done, unless their value asks for nothing.

        Raises:
            Unsupported: the value is not one of those that the mapping allows.
        """
        for name, neutral in unsupported.items():
            value = self.take(name)
            if value is not None and not any(_same(value, allowed) for allowed in neutral):
                raise Unsupported(self.name(name))

    def end(self) -> None:
        """Raises HttpFault if a field is left, which nobody knows."""
        for name in self._left:
            shown = self.name(name[:64])
            raise HttpFault(400, f"unknown field: {shown}", "unknown_field", shown)


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidField(name, "true or false")
    return value


def _same(value: Any, other: Any) -> bool:
    """For Python, 0 is False, too."""
    return type(value) is type(other) and bool(value == other)
