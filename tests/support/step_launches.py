"""What a step of trees launches besides the model."""

from __future__ import annotations

from dataclasses import fields

import torch

from kernels.sample_coupled import Choices, sample_coupled
from kernels.sampling_options import SamplingOptions
from kernels.take_changes import take_changes
from kernels.tree_accept import tree_accept
from kernels.tree_append import Guesses, tree_append
from kernels.tree_layout import Commits, Picked, Sequences, StepRows, Trees
from kernels.tree_reroot import tree_reroot
from kernels.tree_select import SelectWorkspace, tree_select

_CPU = torch.device("cpu")


def launch_step(slots: int, rows: int, vocab: int) -> None:
    """Every kernel of trees and sampling, with tensors on the CPU, to be compiled only."""
    trees, sequences = Trees.empty(slots, 64, _CPU), Sequences.empty(slots, _CPU)
    options = SamplingOptions.empty(slots, vocab, 1024, 1024, _CPU)
    layout, choices = StepRows.empty(slots, rows, _CPU), Choices.empty(rows, vocab, _CPU)
    picked, commits = Picked.empty(slots, 64, _CPU), Commits.empty(slots, 33, _CPU)
    cost, allowed = torch.zeros(rows + 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int32)
    workspace = SelectWorkspace.empty(slots, 64, 256, _CPU)
    told = {field.name: getattr(sequences, field.name) for field in fields(Sequences)}
    take_changes(told, sequences.active, sequences, trees)
    tree_append(trees, sequences, Guesses.empty(slots, 8, _CPU), 64, 32)
    tree_select(trees, sequences, cost, allowed, rows, workspace, picked)
    sample_coupled(torch.zeros(rows, vocab), options, layout, choices)
    tree_accept(layout, choices, sequences, options, commits, 65)
    tree_reroot(trees, sequences, commits)
