from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.skinny_gemm import token_blocks
from kernels.skinny_table import BF16, FP8, TUNED, W8A16, untuned


@pytest.mark.parametrize("operands", [FP8, W8A16, BF16])
def test_untuned_shapes_give_a_large_gpu_enough_programs(operands: str):
    for n, k in [(4096, 4096), (6144, 4096), (28672, 4096), (8192, 28672), (576, 576), (1, 1)]:
        tiling = untuned(operands, n, k)
        programs = -(-n // tiling.few.block_n) * tiling.splits
        most = min(max(k // 512, 1), 8)
        assert programs >= 132 or tiling.splits == most
        assert 1 <= tiling.splits <= most


def test_the_table_holds_what_tensor_cores_take():
    for tiling in [*TUNED.values(), untuned(FP8, 4096, 4096), untuned(BF16, 4096, 4096)]:
        assert tiling.block_k in (32, 64, 128, 256)
        for launch in (tiling.few, tiling.some or tiling.few, tiling.many):
            assert launch.block_n in (64, 128, 256)
            assert launch.warps in (4, 8) and 1 <= launch.stages <= 8
            assert launch.ahead % 16 == 0  # what is fetched ahead is whole pieces of 16 bytes


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [(1, (16, 0)), (17, (32, 0)), (33, (32, 16)), (64, (64, 0)), (65, (64, 16)), (96, (64, 32)),
     (97, (128, 0)), (500, (128, 0))],
    ids=str,
)  # fmt: skip
def test_few_blocks_hold_all_rows(rows: int, blocks: tuple[int, int]):
    tiling = untuned(FP8, 4096, 4096)
    assert token_blocks(rows, tiling) == blocks
    whole = replace(tiling, many=replace(tiling.many, tail=False))
    if rows > 32 and blocks[1]:
        assert token_blocks(rows, whole) == (64 if rows <= 64 else 128, 0)
