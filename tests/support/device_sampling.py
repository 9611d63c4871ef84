"""Requests' parameters and rows of a step, as the kernels read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import torch

from foredraft.engine.sampling import SampledRow
from foredraft.params import SamplingParams
from kernels import sampling_options as columns
from kernels.sampling_options import SamplingOptions
from kernels.tree_layout import StepRows
from support.device_trees import moved


@dataclass(frozen=True, slots=True)
class Slot:
    """One sequence of a step: its tokens, and its guesses as (token, index of the parent)."""

    params: SamplingParams
    tokens: tuple[int, ...]
    prompt_length: int
    guesses: tuple[tuple[int, int], ...] = ()
    choice: int = 0


def options_of(
    slots: Sequence[Slot], vocab: int, eos: tuple[int, ...], device: torch.device
) -> SamplingOptions:
    cpu = torch.device("cpu")
    options = SamplingOptions.empty(len(slots), vocab, 16, 8, cpu)
    for index, slot in enumerate(slots):
        params = slot.params
        options.floats[index] = torch.tensor(
            [
                params.temperature,
                params.top_p,
                log(params.min_p) if params.min_p > 0 else -torch.inf,
                params.repetition_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            ]
        )
        ends, biases = sorted(params.ends(eos)), sorted(params.logit_bias.items())
        options.ints[index] = torch.tensor(
            [
                _signed(params.seed & 0xFFFFFFFF),
                _signed(params.seed >> 32),
                slot.choice,
                min(params.top_k, vocab),
                slot.prompt_length + params.min_tokens,
                len(biases),
                len(ends),
                int(params.logprobs is not None),
            ],
            dtype=torch.int32,
        )
        for place, (token, bias) in enumerate(biases):
            options.bias_ids[index, place], options.biases[index, place] = token, bias
        options.end_ids[index, : len(ends)] = torch.tensor(ends, dtype=torch.int32)
        for token in set(slot.tokens[: slot.prompt_length]):
            options.seen[index, token] = columns.IN_PROMPT
        for token, count in Counter(slot.tokens[slot.prompt_length :]).items():
            options.seen[index, token] += columns.WRITTEN * count
    return moved(options, device)


def rows_of(slots: Sequence[Slot], padding: int, device: torch.device) -> StepRows:
    """Roots and guesses of all slots, then rows of padding."""
    count = sum(1 + len(slot.guesses) for slot in slots)
    rows = StepRows.empty(len(slots), count + padding, torch.device("cpu"))
    row = 0
    for index, slot in enumerate(slots):
        rows.start[index], rows.count[index] = row, 1 + len(slot.guesses)
        depths: list[int] = []
        for node, (token, parent) in [(-1, (slot.tokens[-1], -2)), *enumerate(slot.guesses)]:
            depths.append(depths[parent + 1] + 1 if depths else 0)
            rows.slot[row], rows.node[row], rows.token[row] = index, node, token
            rows.parent[row], rows.depth[row] = parent + 1, depths[-1]
            rows.position[row] = len(slot.tokens) - 1 + depths[-1]
            row += 1
    return moved(rows, device)


def sampled_rows(slots: Iterable[Slot]) -> list[SampledRow]:
    """The same rows as the engine on a CPU takes them."""
    listed = []
    for slot in slots:
        paths: list[tuple[int, ...]] = [()]
        paths += [()] * len(slot.guesses)
        for node, (token, parent) in enumerate(slot.guesses):
            paths[node + 1] = (*paths[parent + 1], token)
        for path in paths:
            history = (*slot.tokens, *path)
            listed.append(
                SampledRow(slot.params, slot.choice, len(history), slot.prompt_length, history)
            )
    return listed


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
