"""Products under Triton's interpreter as a GPU makes them: every element alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def ordered_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the terms of a product one by one.

    NumPy asks a library, which rounds an element differently in products of other shapes; an MMA
    instruction does not.
    """
    monkeypatch.setattr(InterpreterBuilder, "create_dot", _dot)


def _dot(
    _builder: InterpreterBuilder, a: Any, b: Any, before: Any, _precision: Any, _imprecise: Any
) -> TensorHandle:
    total = np.array(before.data)
    for column, row in zip(np.moveaxis(a.data, 1, 0), b.data, strict=True):
        total += column[:, None] * row
    return TensorHandle(total, before.dtype.scalar)
