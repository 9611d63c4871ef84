"""Choosing tokens, beside the plainest way of doing so in torch; from logits to commits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from kernels.sample_coupled import Choices, sample_coupled, sample_coupled_reference
from kernels.sampling_options import (
    LOG_MIN_P,
    PRESENCE,
    REPETITION,
    SEED_LOW,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplingOptions,
)
from kernels.tree_accept import tree_accept
from kernels.tree_layout import Commits, Sequences, StepRows

_VOCABULARIES = (49_152, 128_256)
_ROWS = (1, 16, 64)
_WAYS: Mapping[str, Mapping[int, float]] = {
    "greedy": {},
    "noise": {TEMPERATURE.value: 0.8},
    "filters": {TEMPERATURE.value: 0.8, TOP_P.value: 0.95, LOG_MIN_P.value: -3.0},
    "penalties": {TEMPERATURE.value: 0.8, REPETITION.value: 1.1, PRESENCE.value: 0.5},
}
_ACCEPT_PATH = 15.0  # microseconds, from logits to commits
_TOP_K = 50  # beside the other filters


def cases() -> list[Case]:
    """Two kernels' worth of names: choices alone, and with the commits that follow from them."""
    return [
        Case(
            kernel=kernel,
            shape=f"{vocab:,} tokens, {rows} rows, {way}",
            moved_bytes=4 * rows * vocab,
            prepare=partial(prepare, way, vocab, rows, kernel == "tree_accept"),
            at_most_us=_ACCEPT_PATH if kernel == "tree_accept" else 0.0,
        )
        for kernel in ("sample_coupled", "tree_accept")
        for vocab in _VOCABULARIES
        for rows in _ROWS
        for way in (_WAYS if kernel == "sample_coupled" else ("greedy", "noise"))
    ]


def prepare(way: str, vocab: int, rows: int, commits: bool, device: torch.device) -> Prepared:
    """``commits``: chosen and accepted, with trees of up to 15 nodes; else chosen alone."""
    copies = copies_for(4 * rows * vocab)
    generator = torch.Generator(device).manual_seed(1)
    logits = torch.randn(copies, rows, vocab, generator=generator, device=device) * 3
    layout = chains(rows, 16 if commits else 1, device)
    slots = len(layout.start)
    options, out = options_for(way, slots, vocab, device), Choices.empty(rows, vocab, device)
    sequences, taken = Sequences.empty(slots, device), Commits.empty(slots, 33, device)
    sequences.limit.fill_(1 << 20)

    def ours(copy: int) -> object:
        sample_coupled(logits[copy], options, layout, out)
        if commits:
            tree_accept(layout, out, sequences, options, taken, 16)
        return out

    contestants = {OURS: ours}
    if not commits and way in ("greedy", "noise"):
        contestants["torch"] = partial(_in_torch, logits, way == "greedy")
    return Prepared(contestants, copies, partial(_check, logits[0], options, layout))


def chains(rows: int, most: int, device: torch.device) -> StepRows:
    """Sequences of a root and guesses one below the other, up to ``most`` rows each."""
    most = min(rows, most)
    layout = StepRows.empty(rows // most, rows, device)
    number = torch.arange(rows, dtype=torch.int32, device=device)
    layout.slot.copy_(number // most)
    layout.depth.copy_(number % most)
    layout.parent.copy_(layout.depth - 1)
    layout.node.copy_(layout.parent)
    layout.position.copy_(layout.depth + 1000)
    layout.token.copy_(number * 37 % 1000)
    layout.start.copy_(number[::most])
    layout.count.fill_(most)
    return layout


def options_for(way: str, slots: int, vocab: int, device: torch.device) -> SamplingOptions:
    options = SamplingOptions.empty(slots, vocab, 1024, 1024, device)
    for column, value in _WAYS[way].items():
        options.floats[:, column] = value
    options.ints[:, SEED_LOW.value] = torch.arange(slots, dtype=torch.int32, device=device)
    if way == "filters":
        options.ints[:, TOP_K.value] = _TOP_K
    return options


def _in_torch(logits: Tensor, greedy: bool, copy: int) -> object:
    """The best, or a draw by an exponential race, as small programs write it."""
    if greedy:
        return logits[copy].argmax(-1)
    shares = (logits[copy] / 0.8).softmax(-1)
    return (shares / torch.empty_like(shares).exponential_()).argmax(-1)


def _check(logits: Tensor, options: SamplingOptions, layout: StepRows) -> Findings:
    rows, vocab = logits.shape
    together = sample_coupled(logits, options, layout, Choices.empty(rows, vocab, logits.device))
    some = range(0, rows, 7)
    exact = [sample_coupled_reference(logits, row, options, layout) for row in some]
    first = int(layout.count[0])
    alone = Choices.empty(first, vocab, logits.device)
    sample_coupled(logits[:first], options, chains(first, first, logits.device), alone)
    return {
        "the reference's tokens": together.token[:: some.step].tolist() == exact,
        "the same bits alone": torch.equal(alone.best, together.best[:first])
        and torch.equal(alone.threshold, together.threshold[:first]),
    }
