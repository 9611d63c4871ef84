from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.kv_compact import kv_compact, kv_compact_reference
from kernels.kv_layout import BLOCK, KVPool
from kernels.tree_layout import GOES_ON, STOP, Commits

_LAYERS, _HEADS, _BLOCKS, _HEAD_DIM = 2, 1, 12, 48


def _pool(device: torch.device) -> KVPool:
    """Any bytes, NaN codes among them."""
    random = torch.Generator().manual_seed(1)
    pool = KVPool.empty(_LAYERS, _HEADS, _BLOCKS, _HEAD_DIM, device)
    for part in (pool.codes.view(torch.uint8), pool.exponents.view(torch.uint8)):
        part.copy_(torch.randint(256, part.shape, generator=random))
    return pool


def _commits(paths: list[tuple[int, list[int], int]], device: torch.device) -> Commits:
    """Per slot: base, rows of the accepted path, finish."""
    commits = Commits.empty(len(paths), 9, device)
    for slot, (base, rows, finish) in enumerate(paths):
        commits.base[slot], commits.path[slot], commits.finish[slot] = base, len(rows), finish
        commits.rows[slot, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
        commits.rows[slot, len(rows) :] = 2**20  # of an earlier step
    return commits


def _tables(device: torch.device) -> Tensor:
    random = torch.Generator().manual_seed(2)
    blocks = torch.randperm(_BLOCKS, generator=random).view(4, 3)
    return blocks.to(device, torch.int32)


def _bytes(pool: KVPool) -> Tensor:
    """[layers, 2, kv_heads, places, head_dim + 1]."""
    codes = pool.codes.view(torch.uint8).flatten(3, 4)
    return torch.cat((codes, pool.exponents.view(torch.uint8).flatten(3, 4)[..., None]), dim=-1)


def _place(tables: Tensor, slot: int, index: int) -> int:
    return int(tables[slot, index // BLOCK]) * BLOCK + index % BLOCK


@pytest.mark.parametrize(
    "paths",
    [
        [(14, [0, 2, 3, 4, 9, 10, 11], GOES_ON), (1, [0], GOES_ON), (5, [0, 1], GOES_ON)],
        [(16, [0, 1, 2, 12], GOES_ON), (30, [0, 5], STOP), (9, [], GOES_ON), (2, [0, 7], GOES_ON)],
    ],
    ids=["overlapping", "some end"],
)
def test_every_byte_is_the_references(
    device: torch.device, paths: list[tuple[int, list[int], int]]
):
    tables = _tables(device)[: len(paths)]
    pool = _pool(device)
    expected = KVPool(pool.codes.cpu().clone(), pool.exponents.cpu().clone())
    kv_compact(pool, tables, _commits(paths, device))
    cpu = torch.device("cpu")
    kv_compact_reference(expected, tables.cpu(), _commits(paths, cpu))
    assert torch.equal(_bytes(pool).cpu(), _bytes(expected))


def test_reads_come_before_writes_and_nothing_else_moves(device: torch.device):
    rows = [0, 2, 3, 5, 6, 7]
    pool, tables = _pool(device), _tables(device)[:1]
    before = _bytes(pool).clone()
    kv_compact(pool, tables, _commits([(13, rows, GOES_ON)], device))
    after = _bytes(pool)
    targets = [_place(tables, 0, 12 + i) for i in range(len(rows))]
    sources = [_place(tables, 0, 12 + row) for row in rows]
    assert torch.equal(after[:, :, :, targets], before[:, :, :, sources])
    others = [place for place in range(_BLOCKS * BLOCK) if place not in targets]
    assert torch.equal(after[:, :, :, others], before[:, :, :, others])
    assert not torch.equal(after, before)


def test_what_does_not_fit_is_named(device: torch.device):
    pool, tables = _pool(device), _tables(device)
    with pytest.raises(ValueError, match=r"tables must be contiguous torch.int32 \[1, 3\]"):
        kv_compact(pool, tables, _commits([(13, [0], GOES_ON)], device))
    broken = KVPool(pool.codes, pool.exponents.int())
    with pytest.raises(ValueError, match=r"layer.exponents must be contiguous torch.int8"):
        kv_compact(broken, tables[:1], _commits([(13, [0], GOES_ON)], device))
