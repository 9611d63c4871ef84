"""Linear layers over the rows of a step, with what stands before and behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.native.packed import Packed
from kernels.cpu.block_product import FIELDS, TILE, compiled_products
from kernels.cpu.block_rows import BLOCK
from kernels.cpu.job import Job, float_bits
from kernels.cpu.team import Team


class Scratch:
    """What the products of a step share: who computes them, and rows in 16 bits."""

    def __init__(self, team: Team, rows: int, columns: int) -> None:
        """For as many rows, of at most ``columns`` numbers."""
        self.team = team
        self.levels = torch.empty(rows, columns, dtype=torch.int16)
        self.scales = torch.empty(rows, columns // BLOCK, 2)


class Product:
    """y = f(x) Wᵀ, or y += f(x) Wᵀ, for one x and one y; layers differ in their weights only.

    x, y: float32 [rows, ..].
    source: what f is, a name of `block_product.SOURCES`.
    """

    def __init__(
        self, source: str, x: Tensor, y: Tensor, scratch: Scratch, *, add: bool, rms_eps: float = 0
    ) -> None:
        self._source = source
        self._held = (x, y, scratch)  # the job knows their addresses only
        self._job = Job(
            FIELDS,
            x=x.data_ptr(),
            y=y.data_ptr(),
            levels=scratch.levels.data_ptr(),
            scales=scratch.scales.data_ptr(),
            eps=float_bits(rms_eps),
            rows=len(x),
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            add=int(add),
            team=scratch.team.address,
        )

    def run(self, weight: Packed, gamma: int = 0) -> None:
        """``gamma``: the address of a norm's weights, float32 [columns]."""
        self._job.set(
            weights=weight.address,
            gamma=gamma,
            blocks=weight.columns // BLOCK,
            tiles=weight.outputs // TILE,
        )
        self._job.run(compiled_products(weight.bits)[self._source])
