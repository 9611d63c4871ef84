"""Kernels run on a GPU, or anywhere under Triton's interpreter, which has to be chosen at start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton

_HERE = Path(__file__).parent
_INTERPRETED = bool(triton.knobs.runtime.interpret)
_SKIP = pytest.mark.skip(reason="needs a GPU, or TRITON_INTERPRET=1 when pytest starts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _INTERPRETED or torch.cuda.is_available():
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(_SKIP)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels under test run."""
    return torch.device("cpu" if _INTERPRETED else "cuda")
