"""Move the keys and values of accepted nodes to where committed tokens stand, in all layers.

Row i of a sequence's accepted path wrote slot ``base - 1 + rows[i]`` of it and belongs in slot
``base - 1 + i``. Every program moves one plane of a layer (keys or values of a KV head) for one
sequence: it reads all entries before it writes any, so a slot may be both a source and a target.
Codes and exponents are copied as they are. Sequences that end with the step keep what they have.

Moved: 2 (head_dim + 1) bytes per entry that changes its slot, KV head, layer, key and value.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.kv_layout import BLOCK, KVPool, check_layer, place_of
from kernels.tree_layout import GOES_ON, Commits

_GOES_ON = tl.constexpr(GOES_ON)


def kv_compact(pool: KVPool, tables: Tensor, commits: Commits) -> None:
    """Move what ``commits`` accepted.

    Args:
        tables: int32 [slots, blocks]: block tables.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    check_layer(pool.layer(0))
    slots, longest = commits.rows.shape
    layers, _, kv_heads, blocks, _, head_dim = pool.codes.shape
    check_tensor("pool.codes", pool.codes, pool.codes.shape, torch.float8_e4m3fn)
    check_tensor("pool.exponents", pool.exponents, pool.codes.shape[:5], torch.int8)
    check_tensor("tables", tables, (slots, tables.shape[-1]), torch.int32)
    kv_compact_kernel[(layers * 2 * kv_heads, slots)](
        pool.codes.view(torch.uint8),
        pool.exponents,
        tables,
        commits.base,
        commits.path,
        commits.rows,
        commits.finish,
        tables.stride(0),
        blocks * BLOCK,
        longest,
        LONGEST=triton.next_power_of_2(longest),
        HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(head_dim),
    )


@triton.jit
def kv_compact_kernel(
    codes, exponents, tables, base, path, rows, finish, table_stride, places, longest,
    LONGEST: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per plane and slot."""
    plane, own = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.load(path + own)
    if (count > 1) & (tl.load(finish + own) == _GOES_ON):
        at = tl.arange(0, LONGEST)
        local = tl.load(rows + own * longest + at, mask=at < count, other=0)
        moved = (at < count) & (local != at)
        fed = tl.load(base + own) - 1
        table = tables + own * table_stride
        source = plane * places + place_of(table, fed + local, moved, True)
        target = plane * places + place_of(table, fed + at, moved, True)
        lane = tl.arange(0, WIDTH)
        inside = moved[:, None] & (lane < HEAD_DIM)[None, :]
        some = tl.load(codes + source[:, None] * HEAD_DIM + lane[None, :], mask=inside)
        powers = tl.load(exponents + source, mask=moved)
        tl.debug_barrier()  # all reads come before the writes
        tl.store(codes + target[:, None] * HEAD_DIM + lane[None, :], some, mask=inside)
        tl.store(exponents + target, powers, mask=moved)


def kv_compact_reference(pool: KVPool, tables: Tensor, commits: Commits) -> None:
    """`kv_compact` in torch."""
    codes, exponents = pool.codes.view(torch.uint8).flatten(3, 4), pool.exponents.flatten(3, 4)
    for slot, count in enumerate(commits.path.tolist()):
        if commits.finish[slot] == GOES_ON:
            fed = int(commits.base[slot]) - 1
            slots = torch.stack((commits.rows[slot, :count].long(), torch.arange(count))) + fed
            source, target = tables[slot, slots // BLOCK].long() * BLOCK + slots % BLOCK
            codes[:, :, :, target] = codes[:, :, :, source]
            exponents[:, :, :, target] = exponents[:, :, :, source]
