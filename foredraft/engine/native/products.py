"""Linear layers over the rows of a step, with what stands before and behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.native.blocks import Blocks
from foredraft.engine.native.packed import Packed
from kernels.cpu import rescore
from kernels.cpu.block_product import FIELDS, TILE, compiled_products
from kernels.cpu.block_rows import BLOCK
from kernels.cpu.emitter import LANES
from kernels.cpu.job import float_bits
from kernels.cpu.program import Step
from kernels.cpu.team import Team


class Products:
    """Makes steps that share a scratch, where rows stand in 16 bits while they are read."""

    def __init__(self, team: Team, rows: int, columns: int, rms_eps: float) -> None:
        """For as many rows, of at most ``columns`` numbers."""
        self._team = team
        self._levels = torch.empty(rows, columns, dtype=torch.int16)
        self._scales = torch.empty(rows, columns // BLOCK, 2)
        self._numbers = torch.empty(rescore.COUNT, LANES, dtype=torch.int32)
        self._eps = float_bits(rms_eps)

    def step(
        self, source: str, x: Tensor, weight: Packed, y: Tensor, gamma: Tensor | None = None
    ) -> Step:
        """y = RMSNorm(x) Wᵀ with a ``gamma``, else y += f(x) Wᵀ.

        x, y: float32 [rows, ..].
        source: what f is, a name of `block_product.SOURCES`; "normed" with a ``gamma``.
        """
        values = {
            "x": x.data_ptr(),
            "y": y.data_ptr(),
            "weights": weight.address,
            "levels": self._levels.data_ptr(),
            "scales": self._scales.data_ptr(),
            "gamma": 0 if gamma is None else gamma.data_ptr(),
            "eps": self._eps,
            "blocks": weight.columns // BLOCK,
            "tiles": weight.outputs // TILE,
            "x_stride": x.stride(0),
            "y_stride": y.stride(0),
            "add": int(gamma is None),
            "team": self._team.address,
        }
        return Step(compiled_products(weight.bits).address(source), FIELDS, values)

    def rescore(self, y: Tensor, exact: Blocks) -> Step:
        """Compute the largest of each row of ``y``, which the step before has made, by ``exact``.

        exact: blocks of 8 bits, a row per output, which must be kept.
        """
        values = {
            "y": y.data_ptr(),
            "y_stride": y.stride(0),
            "columns": y.shape[1],
            "outputs": exact.shape[0],
            "blocks": exact.shape[1] // BLOCK,
            "levels": self._levels.data_ptr(),
            "scales": self._scales.data_ptr(),
            "exact_levels": exact.levels.data_ptr(),
            "exact_scales": exact.scales.data_ptr(),
            "numbers": self._numbers.data_ptr(),
        }
        return Step(rescore.compiled_rescore().address("rescore"), rescore.FIELDS, values)
