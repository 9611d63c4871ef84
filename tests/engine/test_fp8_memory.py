"""What steps in FP8 are laid out in: boxes of tensors, and the sizes that graphs are made for."""

from __future__ import annotations

import torch

from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.fp8.graphs import Bucket
from foredraft.engine.fp8.inputs import Inputs
from foredraft.engine.fp8.mailbox import Mailbox, Part

CPU = torch.device("cpu")


def test_a_mailbox_carries_every_part_and_keeps_two_steps_apart() -> None:
    parts = {
        "odd": Part((3,)),
        "long": Part((2,), torch.int64),
        "none": Part((0, 4)),
        "real": Part((2, 3), torch.float32),
    }
    box = Mailbox(parts, CPU)
    first, second = box.host(4), box.host(5)
    first["odd"].copy_(torch.tensor([1, 2, 3]))
    first["long"].copy_(torch.tensor([-(2**63), 2**62]))
    first["real"].fill_(0.5)
    second["odd"].fill_(7)
    box.send(4)
    assert box.device["odd"].tolist() == [1, 2, 3]
    assert box.device["long"].tolist() == [-(2**63), 2**62]
    assert box.device["real"].tolist() == [[0.5] * 3] * 2
    assert box.device["none"].shape == (0, 4)
    box.send(5)
    assert box.device["odd"].tolist() == [7, 7, 7]
    box.device["odd"].fill_(9)
    box.fetch(6)
    assert box.host(6)["odd"].tolist() == [9, 9, 9]
    assert box.host(5)["odd"].tolist() == [7, 7, 7]


def test_rows_that_are_left_over_are_padding() -> None:
    inputs = Inputs.empty(4, 8, 6, CPU)
    tree = SequenceRows([3, 5], 14, [10, 11, 12], [(14,), (14, 15), (14, 16)])
    inputs.fill([SequenceRows([2], 1, [9], [(1,)]), tree])
    rows = inputs.rows
    assert rows.start.tolist() == [0, 1, 0, 0] and rows.count.tolist() == [1, 3, 0, 0]
    assert rows.slot.tolist() == [0, 1, 1, 1, -1, -1, -1, -1]
    assert rows.position.tolist() == [1, 14, 15, 15, 0, 0, 0, 0]
    assert rows.depth.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert inputs.place.tolist() == [33, 62, 63, 80, -1, -1, -1, -1]
    assert inputs.path[:4, :2].tolist() == [[0, 0], [0, 0], [0, 1], [0, 2]]
    assert inputs.tables[:2, :2].tolist() == [[2, 0], [3, 5]]
    inputs.fill([SequenceRows([4], 0, [8], [(0,)])])
    assert rows.slot.tolist() == [0] + [-1] * 7 and rows.count.tolist() == [1, 0, 0, 0]


def test_a_bucket_is_the_next_power_of_two() -> None:
    def batch(*counts: int) -> list[SequenceRows]:
        return [SequenceRows([1], 0, [5] * count, [(0,)] * count) for count in counts]

    assert Bucket.of(batch(1)) == Bucket(1, 1, 1)
    assert Bucket.of(batch(3)) == Bucket(1, 4, 4)
    assert Bucket.of(batch(1, 1, 1)) == Bucket(4, 4, 1)
    assert Bucket.of(batch(5, 1, 2)) == Bucket(4, 8, 8)
