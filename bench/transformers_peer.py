"""transformers' own generate, timed: the peer that `compare` measures against."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.peer import PeerAnswer
from foredraft.config import usable_cores


@dataclass
class _Clock:
    """A streamer that only notes when tokens come; the first call brings the prompt."""

    times: list[float] = field(default_factory=list)

    def put(self, _: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        return


class TransformersPeer:
    def __init__(self, model: Path, dtype: str) -> None:
        torch.set_num_threads(usable_cores())
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)

    def generate(self, prompt: Sequence[int], max_tokens: int, *, lookup: bool) -> PeerAnswer:
        """Greedy; ``lookup`` turns on its prompt lookup with ten tokens."""
        clock = _Clock()
        ids = torch.tensor([list(prompt)])
        options: dict[str, Any] = {"prompt_lookup_num_tokens": 10} if lookup else {}
        started = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                streamer=clock,
                **options,
            )
        seconds = time.perf_counter() - started
        return PeerAnswer(output[0, len(prompt) :].tolist(), seconds, clock.times[1] - started)
