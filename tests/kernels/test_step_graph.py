"""A step's kernels in a CUDA graph: nothing waits for the host or allocates by contents."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from support.device_sampling import Slot, options_of
from support.device_trees import grow, running, signed, trees_of

from foredraft.params import SamplingParams
from foredraft.tree.token_tree import TokenTree
from kernels.sample_coupled import Choices, sample_coupled
from kernels.tree_accept import tree_accept
from kernels.tree_append import Guesses, tree_append
from kernels.tree_layout import Commits, Picked, StepRows, Trees
from kernels.tree_reroot import tree_reroot
from kernels.tree_select import SelectWorkspace, tree_select

SLOTS, VOCAB, CAPACITY, DEPTH, ROWS = 3, 600, 16, 6, 4
PARAMS = (
    SamplingParams(presence_penalty=0.5),
    SamplingParams(temperature=0.9, seed=4),
    SamplingParams(temperature=1.2, top_k=30, top_p=0.9, seed=5),
)


def _step(device: torch.device) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """A step from the same trees at every call, and what it writes."""
    rng = random.Random(2)
    models = [TokenTree(slot, 1, [1, 2], CAPACITY, DEPTH) for slot in range(SLOTS)]
    for model in models:
        grow(rng, model, 9, vocab=3)
    trees, sequences = trees_of(models, CAPACITY, device), running([2] * SLOTS, [99] * 3, device)
    sequences.root_id.copy_(torch.tensor([signed(model.root_id) for model in models]))
    slots = [Slot(params, (1, 2), 1) for params in PARAMS]
    options = options_of(slots, VOCAB, (2,), device)
    rows = StepRows.empty(SLOTS, ROWS, device)
    rows.slot[:SLOTS] = rows.start[:] = torch.arange(SLOTS, dtype=torch.int32)
    rows.count.fill_(1)
    rows.position[:SLOTS] = 1
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3)).to(device)
    guesses, choices = Guesses.empty(SLOTS, 8, device), Choices.empty(ROWS, VOCAB, device)
    workspace = SelectWorkspace.empty(SLOTS, CAPACITY, 16, device)
    picked, commits = Picked.empty(SLOTS, CAPACITY, device), Commits.empty(SLOTS, 7, device)
    cost = torch.full((ROWS + 1,), 5.0, dtype=torch.float64, device=device)
    allowed = torch.full((1,), 16, dtype=torch.int32, device=device)
    changed = [*_columns(trees), *_columns(sequences), options.seen]
    before = [column.clone() for column in changed]

    def step() -> None:
        for column, old in zip(changed, before, strict=True):
            column.copy_(old)
        tree_append(trees, sequences, guesses, CAPACITY, DEPTH)
        tree_select(trees, sequences, cost, allowed, ROWS, workspace, picked)
        sample_coupled(logits, options, rows, choices)
        tree_accept(rows, choices, sequences, options, commits, ROWS)
        tree_reroot(trees, sequences, commits)

    return step, [*changed, *_columns(picked), *_columns(commits), choices.token]


def _columns(layout: Trees | Picked | Commits) -> list[torch.Tensor]:
    return [getattr(layout, name) for name in type(layout).__slots__]


def test_a_replayed_step_is_the_same(device: torch.device) -> None:
    step, written = _step(device)
    step()
    eager = [column.clone() for column in written]
    assert int(eager[-1][:SLOTS].min()) > 0
    if device.type != "cuda":
        pytest.skip("a CUDA graph needs a GPU; the step itself has run")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for column in written:
        column.zero_()
    graph.replay()
    assert all(map(torch.equal, written, eager))
