"""How a run that is asked to end tells so."""

from __future__ import annotations


class Stopped(Exception):
    """The run was asked to end; what it had made and could be gone on with is kept."""
