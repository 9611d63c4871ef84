"""What is kept in large pages is what was given, each by itself."""

from __future__ import annotations

import sys

import pytest
import torch

from foredraft.engine.native.large_pages import LargePages


@pytest.mark.skipif(sys.platform != "linux", reason="such memory is Linux's")
def test_tensors_lie_side_by_side() -> None:
    pages, random = LargePages(), torch.Generator().manual_seed(0)
    sizes = (1, 1000, 65, 33 * 2**20, 7, 31 * 2**20)
    given = [torch.randint(256, (n,), generator=random).to(torch.uint8) for n in sizes]
    kept = [pages.keep(data) for data in given]
    for ours, data in zip(kept, given, strict=True):
        assert torch.equal(ours, data) and ours.data_ptr() % 64 == 0
    assert kept[1].data_ptr() - kept[0].data_ptr() == 64
