"""Matrices as int8 with one scale per row: a quarter of float32's bytes.

q = round(w / s) with s = max |w| / 127 over the row, so that no weight is off by more than s / 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """``values`` int8 [rows, columns], ``scales`` float32 [rows]."""

    values: NDArray[np.int8]
    scales: NDArray[np.float32]

    @classmethod
    def of(cls, weight: NDArray[np.float32]) -> Int8Rows:
        """The nearest to ``weight`` [rows, columns], which must be finite."""
        scales = (np.abs(weight).max(axis=1) / _LARGEST).astype(np.float32)
        # In a row of zeros, or of numbers too small for a scale, all are 0.
        divisors = np.where(scales > 0, scales, np.float32(np.inf)).astype(np.float64)
        rounded = np.rint(weight / divisors[:, None])
        return cls(np.clip(rounded, -_LARGEST, _LARGEST).astype(np.int8), scales)

    def floats(self) -> NDArray[np.float32]:
        """The weights, float32 [rows, columns]."""
        return self.values.astype(np.float32) * self.scales[:, None]
