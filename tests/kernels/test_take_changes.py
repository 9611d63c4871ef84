from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from kernels.take_changes import take_changes, take_changes_reference
from kernels.tree_layout import Sequences, Trees


def _state(slots: int, device: torch.device) -> tuple[Sequences, Trees]:
    sequences, trees = Sequences.empty(slots, device), Trees.empty(slots, 4, device)
    for number, field in enumerate(fields(Sequences)):
        getattr(sequences, field.name).fill_(number + 1)
    trees.count.fill_(3)
    return sequences, trees


def _told(slots: int, device: torch.device) -> dict[str, Tensor]:
    told = Sequences.empty(slots, device)
    for number, field in enumerate(fields(Sequences)):
        column = getattr(told, field.name)
        column.copy_(torch.arange(slots) * 10 - number)
    told.root_id.sub_(2**60)
    return {field.name: getattr(told, field.name) for field in fields(Sequences)}


@pytest.mark.parametrize("changed", [[1, 0, 1, 0, 0], [0], [1]], ids=str)
def test_new_columns_are_taken_and_others_stay(device: torch.device, changed: list[int]):
    slots, flags = len(changed), torch.tensor(changed, dtype=torch.int32, device=device)
    (sequences, trees), (expected, whole) = _state(slots, device), _state(slots, device)
    take_changes(_told(slots, device), flags, sequences, trees)
    take_changes_reference(_told(slots, device), flags, expected, whole)
    for field in fields(Sequences):
        assert torch.equal(getattr(sequences, field.name), getattr(expected, field.name))
    assert trees.count.tolist() == [0 if one else 3 for one in changed] == whole.count.tolist()
    assert sequences.node_limit.tolist() == [10 * slot - 4 for slot in range(slots)]
    assert sequences.root_id[0] == (-6 - 2**60 if changed[0] else 7)


def test_a_sequence_that_has_ended_cannot_be_let_in_again(device: torch.device):
    sequences, trees = _state(4, device)
    told, flags = _told(4, device), torch.zeros(4, dtype=torch.int32, device=device)
    sequences.active.copy_(torch.tensor([0, 0, 1, 1]))
    told["active"].copy_(torch.tensor([0, 1, 0, 1]))
    take_changes(told, flags, sequences, trees)
    assert sequences.active.tolist() == [0, 0, 0, 1]


def test_what_does_not_fit_is_named(device: torch.device):
    sequences, trees = _state(2, device)
    told, flags = _told(2, device), torch.zeros(2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="changed must be"):
        take_changes(told, flags[:1], sequences, trees)
    with pytest.raises(ValueError, match="root_id must be"):
        take_changes(told | {"root_id": told["length"]}, flags, sequences, trees)
