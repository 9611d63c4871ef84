"""llama.cpp on a GGUF file, timed: the peer for CPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.peer import PeerAnswer
from foredraft.cli.faults import CommandError
from foredraft.config import usable_cores

_CONTEXT = 8192


class LlamaCppPeer:
    """Its weights are the file's, quantised as they are there: its ids may differ from ours.

    Raises:
        CommandError: llama-cpp-python is not installed, or cannot read the file.
    """

    def __init__(self, gguf: Path) -> None:
        try:
            llama: Any = import_module("llama_cpp").Llama
        except ImportError as error:
            text = "--peer llama.cpp needs llama-cpp-python: pip install llama-cpp-python"
            raise CommandError(text) from error
        cores = usable_cores()
        try:
            self._model: Any = llama(
                str(gguf), n_ctx=_CONTEXT, n_threads=cores, n_threads_batch=cores, verbose=False
            )
        except ValueError as error:
            raise CommandError(f"--peer-gguf: {error}") from error

    def generate(self, prompt: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Greedy; the whole prompt is computed each time."""
        self._model.reset()
        ids: list[int] = []
        first = 0.0
        started = time.perf_counter()
        for token in self._model.generate(list(prompt), top_k=1, temp=0.0, repeat_penalty=1.0):
            first = first or time.perf_counter() - started
            if token == self._model.token_eos():  # no part of an answer, as with us
                break
            ids.append(token)
            if len(ids) == max_tokens:
                break
        return PeerAnswer(ids, time.perf_counter() - started, first)
