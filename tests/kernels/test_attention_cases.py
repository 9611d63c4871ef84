"""The benchmark's cases of attention and KV at tiny sizes: they launch, what they check holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from bench.kernels.case import OURS, Prepared
from bench.kernels.cases import kv_kernels, tree_attention
from bench.kernels.paged_trees import PagedTrees

_HEADS = kv_kernels.Heads(1, 1, 32)


@pytest.mark.parametrize(
    "prepare",
    [
        partial(tree_attention.prepare, PagedTrees(2, 1, 16, (130, 2), (2, 1))),
        partial(kv_kernels.prepare_rope, _HEADS, 2),
        partial(kv_kernels.prepare_compact, _HEADS, 2, 1),
        partial(kv_kernels.prepare_inputs, 2),
    ],
    ids=["attention", "rope", "compact", "inputs"],
)
def test_what_is_checked_holds(device: torch.device, prepare: Callable[[torch.device], Prepared]):
    prepared = prepare(device)
    findings = prepared.check()
    assert findings and all(found is not False for found in findings.values())
    prepared.contestants[OURS](prepared.copies - 1)
