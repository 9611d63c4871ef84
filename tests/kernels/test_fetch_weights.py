from __future__ import annotations

import torch

from kernels.early_start import starts_early
from kernels.fetch_weights import fetch_weights
from kernels.skinny_table import FP8
from kernels.tree_layout import StepRows


def test_weights_are_fetched_where_they_can_be(device: torch.device):
    rows = StepRows.empty(3, 4, device)
    rows.count.copy_(torch.tensor([1, 0, 2]))
    rows.start.copy_(torch.tensor([0, 0, 1]))
    weight = torch.ones(130, 1024, dtype=torch.float8_e4m3fn, device=device)
    before = weight.float()
    for most_bytes, most_context in [(1 << 20, 100), (1000, 100), (1 << 20, -1)]:
        fetched = fetch_weights(FP8, weight, rows, most_bytes, most_context)
        assert fetched == starts_early(device)
    assert not fetch_weights(FP8, weight[:, :1000].contiguous(), rows, 1 << 20, 100)
    assert torch.equal(weight.float(), before)
