"""``foredraft bench step``: whole steps of a target in FP8, as the engine runs them on a GPU."""

from __future__ import annotations

import importlib
import importlib.util

from foredraft.cli.faults import CommandError


def main(arguments: list[str]) -> int:
    """What `bench.step.command` does, where there is a Triton to import it with.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: there is no Triton, no GPU for FP8, or no such source.
    """
    if importlib.util.find_spec("triton") is None:
        raise CommandError("bench step needs triton, which comes with torch's builds for GPUs")
    code: int = importlib.import_module("bench.step.command").main(arguments)
    return code
