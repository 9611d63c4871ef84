from __future__ import annotations

import pytest

from kernels.skinny_table import BF16, FP8, TUNED, W8A16, untuned


@pytest.mark.parametrize("operands", [FP8, W8A16, BF16])
def test_untuned_shapes_give_a_large_gpu_enough_programs(operands: str):
    for n, k in [(4096, 4096), (6144, 4096), (28672, 4096), (8192, 28672), (576, 576), (1, 1)]:
        tiling = untuned(operands, n, k)
        programs = -(-n // tiling.block_n) * tiling.splits
        most = min(max(k // 512, 1), 8)
        assert programs >= 132 or tiling.splits == most
        assert 1 <= tiling.splits <= most


def test_the_table_holds_what_tensor_cores_take():
    for tiling in [*TUNED.values(), untuned(FP8, 4096, 4096), untuned(BF16, 4096, 4096)]:
        assert tiling.block_n in (32, 64, 128) and tiling.block_k in (32, 64, 128, 256)
        assert tiling.warps in (4, 8) and 1 <= tiling.stages <= 8
