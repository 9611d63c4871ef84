"""Linear layers over the rows of a step, with what stands before and behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.native.packed import Packed
from kernels.cpu.block_product import FIELDS, TILE, compiled_products
from kernels.cpu.block_rows import BLOCK
from kernels.cpu.routine import Job, float_bits


class Products:
    """Products of rows with `Packed` weights. All rows are float32 and lie one behind the other."""

    def __init__(self, rms_eps: float, rows: int, columns: int) -> None:
        """For as many rows, of at most ``columns`` numbers."""
        self._levels = torch.empty(rows, columns, dtype=torch.int16)
        self._scales = torch.empty(rows, columns // BLOCK, 2)
        self._job = Job(
            FIELDS,
            levels=self._levels.data_ptr(),
            scales=self._scales.data_ptr(),
            eps=float_bits(rms_eps),
            rows=rows,
        )

    def normed(self, x: Tensor, weight: Packed, gamma: Tensor, y: Tensor) -> None:
        """y = RMSNorm(x) Wᵀ."""
        self._job.set(gamma=gamma.data_ptr(), add=0)
        self._run("normed", x, weight, y)

    def add_plain(self, x: Tensor, weight: Packed, y: Tensor) -> None:
        """y += x Wᵀ."""
        self._job.set(add=1)
        self._run("plain", x, weight, y)

    def add_gated(self, x: Tensor, weight: Packed, y: Tensor) -> None:
        """y += (SiLU(gate) up) Wᵀ, where a row of x is its gates, then its ups."""
        self._job.set(add=1)
        self._run("gated", x, weight, y)

    def _run(self, source: str, x: Tensor, weight: Packed, y: Tensor) -> None:
        self._job.set(
            x=x.data_ptr(),
            y=y.data_ptr(),
            weights=weight.weights.data_ptr(),
            blocks=weight.columns // BLOCK,
            tiles=weight.outputs // TILE,
            x_stride=x.stride(0),
            y_stride=y.stride(0),
        )
        self._job.run(compiled_products(weight.bits)[source])
