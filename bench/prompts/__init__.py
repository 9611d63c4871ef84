"""``foredraft bench prompts``: long prompts on a GPU, through the step loop that serves them."""

from __future__ import annotations

import importlib
import importlib.util

from foredraft.cli.faults import CommandError


def main(arguments: list[str]) -> int:
    """What `bench.prompts.command` does, where there is a Triton to import it with.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: there is no Triton, no GPU for FP8, or no such source.
    """
    if importlib.util.find_spec("triton") is None:
        raise CommandError("bench prompts needs triton, which comes with torch's builds for GPUs")
    code: int = importlib.import_module("bench.prompts.command").main(arguments)
    return code
