"""The benchmark's cases of trees and sampling at tiny sizes: they launch, what they check holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from bench.kernels.case import OURS, Prepared
from bench.kernels.cases import rolling_trees, sampling


@pytest.mark.parametrize(
    "prepare",
    [
        partial(sampling.prepare, "filters", 900, 1, False),
        partial(sampling.prepare, "penalties", 900, 4, True),
        partial(rolling_trees.PREPARED["tree_select"], 1),
        pytest.param(partial(rolling_trees.PREPARED["tree_append"], 2), marks=pytest.mark.slow),
        pytest.param(partial(rolling_trees.PREPARED["tree_reroot"], 2), marks=pytest.mark.slow),
    ],
    ids=["choices", "accept path", "select", "append", "reroot"],
)
def test_what_is_checked_holds(device: torch.device, prepare: Callable[[torch.device], Prepared]):
    prepared = prepare(device)
    findings = prepared.check()
    assert findings and all(found is not False for found in findings.values())
    prepared.contestants[OURS](prepared.copies - 1)
