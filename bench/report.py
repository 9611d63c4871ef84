"""What every result file says beside its numbers, and how it is written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foredraft.config import usable_cores
from foredraft.params import InvalidField

_PACKAGES = ("foredraft", "torch", "triton", "transformers", "grpcio", "protobuf", "tokenizers")


def check_output(file: Path | None) -> None:
    """Find out before a measurement whether `write_report` will be able to write.

    Raises:
        InvalidField: its folder cannot be made, or it cannot be written there.
    """
    if file is None:
        return
    allowed = f"a file that can be written, not {file}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidField("--json", f"{allowed}: {error.strerror}") from None
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InvalidField("--json", allowed)


def write_report(
    file: Path | None, name: str, arguments: list[str], content: dict[str, Any]
) -> None:
    """Write ``content`` with the command, the machine and the versions; nothing without a file."""
    if file is None:
        return
    report = {
        "benchmark": name,
        "command": f"foredraft bench {name} {shlex.join(map(_without_folder, arguments))}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        **content,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _without_folder(argument: str) -> str:
    """Where a file lay on the machine of the measurement says nothing to a reader."""
    return Path(argument).name if "/" in argument else argument


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Model name and the widest instructions that decide the speed of small products."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(fields.get("flags", "").split())
    known = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    widest = next((name for name in known if name in flags), "no vectors")
    return f"{fields.get('model name', platform.processor())} ({widest})"
