"""compose.yaml as a container engine reads it, for a machine that has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_VARIABLE = re.compile(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")


@dataclass(frozen=True)
class Service:
    """One service: what is run (entry point included), its environment, and its probe."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    probe: tuple[str, ...]
    raw: Mapping[str, Any]

    def in_profile(self, profile: str) -> bool:
        return not self.raw.get("profiles") or profile in self.raw["profiles"]

    def names(self) -> set[str]:
        """Host names by which others reach it."""
        networks = self.raw.get("networks", {})
        return {self.name, *(a for n in networks.values() for a in n.get("aliases", ()))}


def read_compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """The whole file with ``variables``, or their defaults, in place."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return _filled(content, variables)


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    """As an engine does it: variables are replaced in values, after the file has been read."""
    if isinstance(value, dict):
        return {name: _filled(inner, variables) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value
    assert "$" not in _VARIABLE.sub("", value), f"only ${{NAME:-DEFAULT}} is read here: {value}"
    return _VARIABLE.sub(lambda m: variables.get(m["name"]) or m["default"], value)


def read_services(variables: Mapping[str, str] | None = None) -> dict[str, Service]:
    """The services that run Foredraft's own image."""
    services = read_compose(variables or {})["services"]
    return {
        name: Service(
            name=name,
            command=(*entry_point(), *raw["command"]),
            environment=raw["environment"],
            probe=tuple(raw["healthcheck"]["test"]),
            raw=raw,
        )
        for name, raw in services.items()
        if raw["image"].startswith("foredraft:")
    }


def entry_point() -> tuple[str, ...]:
    lines = (ROOT / "deploy" / "Dockerfile").read_text("utf-8").splitlines()
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT "))
    return tuple(json.loads(entry.removeprefix("ENTRYPOINT ")))


def default_profile() -> str:
    """The profile that .env chooses."""
    lines = (ROOT / ".env").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("COMPOSE_PROFILES="))
    return line.partition("=")[2]
