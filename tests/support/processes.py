"""Whether a process that is not our child still runs."""

from __future__ import annotations

from pathlib import Path


def running(pid: int) -> bool:
    """False for a zombie too: an orphan may stay one where nobody collects it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
