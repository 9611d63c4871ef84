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
from foredraft.engine.model_config import read_model_config


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
        self._eos = set(read_model_config(model).eos_token_ids)

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
        found: list[int] = output[0, len(prompt) :].tolist()
        if found[-1] in self._eos:  # no part of an answer, as with us
            found.pop()
        return PeerAnswer(found, seconds, clock.times[1] - started)
