"""Kernels that start before the one before them has ended give what they give one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.codes import same_bytes

from kernels.fp8_gemm_skinny import fp8_gemm_skinny
from kernels.quantize_weight import quantize_weight_reference
from kernels.rmsnorm_residual_quant import rmsnorm_residual_quant
from kernels.silu_mul_quant import silu_mul_quant
from kernels.skinny_gemm import workspace_for
from kernels.skinny_table import FP8, Launch, Tiling

_HIDDEN, _INNER, _LAYERS = 512, 1536, 6
_FIRST = Launch(block_n=64, warps=4, stages=4, ahead=512, lets_in_first=True)
_TILINGS = {
    "lets in first": Tiling(128, 3, few=_FIRST, many=_FIRST),
    "lets in last": Tiling(128, 2, *[Launch(block_n=64, warps=4, stages=4, ahead=128)] * 2),
}


class Chain:
    """Layers that share their buffers and workspaces, as those of a model do."""

    def __init__(self, rows: int, tiling: Tiling, device: torch.device) -> None:
        random = torch.Generator().manual_seed(rows)

        def weight(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            made = torch.randn(n, k, generator=random) * k**-0.5
            return quantize_weight_reference(made.to(device))

        self._layers = [
            (weight(2 * _INNER, _HIDDEN), weight(_HIDDEN, _INNER)) for _ in range(_LAYERS)
        ]
        self._start = torch.randn(rows, _HIDDEN, generator=random).bfloat16().to(device)
        self._gamma = torch.linspace(0.5, 1.5, _HIDDEN, device=device)
        self._tiling = tiling
        self.x = torch.empty_like(self._start)
        self._wide = self._start.new_empty(rows, 2 * _INNER)
        self._scales = torch.empty(rows, device=device)
        self._codes = [
            torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device)
            for width in (_HIDDEN, _INNER)
        ]
        self._workspaces = [workspace_for(FP8, one[0], rows, tiling) for one in self._layers[0]]

    def run(self, between: Callable[[], object]) -> None:
        self.x.copy_(self._start)
        narrow, inner = self._codes
        for first, second in self._layers:
            rmsnorm_residual_quant(self.x, self._gamma, 1e-5, codes=narrow, scales=self._scales)
            between()
            self._multiply(narrow, first, 0, out=self._wide)
            between()
            silu_mul_quant(self._wide, codes=inner, scales=self._scales)
            between()
            self._multiply(inner, second, 1, residual=self.x, out=self.x)
            between()

    def _multiply(self, codes, weight, which: int, **given) -> None:
        fp8_gemm_skinny(
            codes, self._scales, *weight,
            tiling=self._tiling, workspace=self._workspaces[which], **given,
        )  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU nothing starts early")
@pytest.mark.parametrize("name", _TILINGS)
@pytest.mark.parametrize("rows", [1, 65])
def test_a_chain_gives_the_bits_that_its_kernels_give_one_by_one(
    device: torch.device, rows: int, name: str
) -> None:
    chain = Chain(rows, _TILINGS[name], device)
    chain.run(torch.cuda.synchronize)
    one_by_one = chain.x.clone()
    assert one_by_one.isfinite().all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.run(lambda: None)
    for _ in range(50):
        chain.x.zero_()
        graph.replay()
        assert same_bytes(chain.x, one_by_one)
