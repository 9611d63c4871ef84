"""``foredraft bench kernels``: every GPU kernel, checked and timed beside its controls."""

from __future__ import annotations

import importlib
import importlib.util

from foredraft.cli.faults import CommandError


def main(arguments: list[str]) -> int:
    """What `bench.kernels.command` does, where there is a Triton to import it with.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: there is no Triton, or no GPU.
    """
    if importlib.util.find_spec("triton") is None:
        raise CommandError("bench kernels needs triton, which comes with torch's builds for GPUs")
    code: int = importlib.import_module("bench.kernels.command").main(arguments)
    return code
