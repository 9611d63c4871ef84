"""Commits on the device are those of the verify service."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from support.device_sampling import Slot, options_of, rows_of
from support.device_trees import running

from foredraft.params import SamplingParams
from kernels import tree_layout
from kernels.sample_coupled import Choices
from kernels.tree_accept import tree_accept, tree_accept_reference
from kernels.tree_layout import Commits
from verify_service.acceptance import accept, apply_stops

VOCAB, EOS, MOST_ROWS = 40, (2,), 12
FINISHES = {None: tree_layout.GOES_ON, 1: tree_layout.STOP, 2: tree_layout.LENGTH}


def _slot(rng: random.Random) -> Slot:
    """Few different tokens, so that paths are long."""
    tree: dict[tuple[int, int], None] = {}
    for _ in range(rng.randrange(MOST_ROWS)):
        tree[(rng.randrange(2), rng.randrange(-1, len(tree)))] = None
    options = {"stop_token_ids": (3, 39), "ignore_eos": rng.random() < 0.3}
    if rng.random() < 0.5:
        options["presence_penalty"] = 0.5
    tokens = tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(2, 9)))
    return Slot(SamplingParams(**options), tokens, 2, tuple(tree))


def _commits(
    slots: Sequence[Slot],
    chosen: Sequence[Sequence[int]],
    budgets: Sequence[int],
    device: torch.device,
    unsound: int | None = None,
) -> tuple[Commits, torch.Tensor]:
    """Commits, and what was counted."""
    rows = rows_of(slots, 2, device)
    choices = Choices.empty(len(rows.slot), VOCAB, device)
    flat = [token for tokens in chosen for token in tokens]
    choices.token[: len(flat)] = torch.tensor(flat, dtype=torch.int32)
    choices.sound[: len(flat)] = 1
    if unsound is not None:
        choices.sound[unsound] = 0
    lengths = [len(slot.tokens) for slot in slots]
    limits = [length + budget for length, budget in zip(lengths, budgets, strict=True)]
    options = options_of(slots, VOCAB, EOS, device)
    before = options.seen.clone()
    out = Commits.empty(len(slots), MOST_ROWS, device)
    tree_accept(rows, choices, running(lengths, limits, device), options, out, MOST_ROWS)
    return out, options.seen - before


def _counted(tokens: Sequence[int]) -> list[int]:
    return (2 * torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=VOCAB)).tolist()


def test_commits_are_the_services(device: torch.device) -> None:
    rng = random.Random(4)
    slots = [_slot(rng) for _ in range(40)]
    chosen = [rng.choices(range(4), (4, 4, 1, 1), k=1 + len(slot.guesses)) for slot in slots]
    budgets = [rng.choice([1, 2, 3, 50]) for _ in slots]
    out, counted = _commits(slots, chosen, budgets, device)
    deepest, finishes = 0, set()
    for index, slot in enumerate(slots):
        tokens = [slot.tokens[-1], *(token for token, _ in slot.guesses)]
        parents = [0, *(parent + 1 for _, parent in slot.guesses)]
        accepted = accept(tokens, parents, chosen[index])
        stops = slot.params.ends(EOS)
        ending = apply_stops(accepted.tokens, budgets[index], stops)
        path, count = int(out.path[index]), int(out.count[index])
        assert tuple(out.rows[index, :path].tolist()) == accepted.rows
        assert tuple(out.tokens[index, :count].tolist()) == ending.tokens
        assert out.finish[index] == FINISHES[ending.finish]
        assert out.base[index] == len(slot.tokens)
        expected = ending.tokens if slot.params.penalized else ()
        assert counted[index].tolist() == _counted(expected)
        reference = tree_accept_reference(
            torch.tensor(tokens),
            torch.tensor([-1, *parents[1:]]),
            torch.tensor(chosen[index]),
            budgets[index],
            torch.tensor(sorted(stops)),
        )
        assert (tuple(reference[0]), tuple(reference[1].tolist())) == (
            accepted.rows,
            ending.tokens,
        )
        assert reference[2] == out.finish[index]
        deepest, finishes = max(deepest, path), finishes | {ending.finish}
    assert deepest > 3 and finishes == set(FINISHES)


def test_a_row_that_is_not_finite_ends_its_own_sequence_only(device: torch.device) -> None:
    slots = [Slot(SamplingParams(), (1, 5), 1, ((7, -1),)) for _ in range(3)]
    out, _ = _commits(slots, [[7, 8]] * 3, [9] * 3, device, unsound=3)
    assert out.finish.tolist() == [0, tree_layout.NOT_FINITE, 0]
    assert out.count.tolist() == [2, 0, 2]
    assert out.path.tolist() == [2, 0, 2]


def test_a_slot_without_rows_commits_nothing(device: torch.device) -> None:
    slots = [Slot(SamplingParams(), (1, 5), 1) for _ in range(2)]
    rows = rows_of(slots[:1], 1, device)
    start, count = torch.zeros(2, dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    rows = tree_layout.StepRows(
        start.to(device), count.to(device), *(getattr(rows, n) for n in rows.__slots__[2:])
    )
    choices = Choices.empty(2, VOCAB, device)
    choices.sound.fill_(1)
    choices.token[0] = 6
    out = Commits.empty(2, 4, device)
    out.count.fill_(9)
    sequences, options = running([2, 2], [9, 9], device), options_of(slots, VOCAB, EOS, device)
    tree_accept(rows, choices, sequences, options, out, 4)
    assert out.count.tolist() == [1, 0] and out.path.tolist() == [1, 0]
    assert out.finish.tolist() == [0, 0]
    with pytest.raises(ValueError, match="2 slots"):
        tree_accept(rows, choices, sequences, options, Commits.empty(1, 4, device), 4)
