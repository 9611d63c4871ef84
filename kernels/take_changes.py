"""What the host says anew of slots: columns of `Sequences`, and trees that begin empty.

Of slots that are not new it says two things all the same, for it learns a step late what became of
them: for how many nodes there is memory, and which of them shall take part no longer. It cannot let
one take part that has ended meanwhile.

One launch; one by one, the columns would take more time than selecting the nodes of a step. Bytes:
8 per slot and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.tree_layout import Sequences, Trees


@triton.jit
def _take_changes(
    told, columns, changed, counts, slots,
    COLUMNS: tl.constexpr, ACTIVE: tl.constexpr, NODE_LIMIT: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    slot = tl.arange(0, SLOTS)
    there = slot < slots
    new = tl.load(changed + slot, mask=there, other=0) != 0
    for column in tl.static_range(COLUMNS):
        given = tl.load(told[column] + slot, mask=there, other=0)
        if column == ACTIVE:
            held = tl.load(columns[column] + slot, mask=there, other=0)
            tl.store(columns[column] + slot, tl.where(new, given, given & held), mask=there)
        elif column == NODE_LIMIT:
            tl.store(columns[column] + slot, given, mask=there)
        else:
            tl.store(columns[column] + slot, given, mask=new)
    tl.store(counts + slot, tl.zeros((SLOTS,), tl.int32), mask=new)


def take_changes(
    told: Mapping[str, Tensor], changed: Tensor, sequences: Sequences, trees: Trees
) -> None:
    """Take the columns that ``told`` has by the names of `Sequences`, where ``changed`` is not 0.

    ``node_limit`` is taken everywhere, and ``active``, 0 or 1, where it is 0.

    Raises:
        ValueError: shapes or dtypes do not belong together.
    """
    names = [field.name for field in fields(Sequences)]
    slots = len(trees.count)
    columns = tuple(getattr(sequences, name) for name in names)
    given = tuple(told[name] for name in names)
    check_tensor("changed", changed, (slots,), torch.int32)
    for name, column, new in zip(names, columns, given, strict=True):
        check_tensor(name, new, (slots,), column.dtype)
    _take_changes[(1,)](
        given,
        columns,
        changed,
        trees.count,
        slots,
        COLUMNS=len(names),
        ACTIVE=names.index("active"),
        NODE_LIMIT=names.index("node_limit"),
        SLOTS=triton.next_power_of_2(slots),
        num_warps=1,
    )


def take_changes_reference(
    told: Mapping[str, Tensor], changed: Tensor, sequences: Sequences, trees: Trees
) -> None:
    """The same, column by column."""
    new = changed != 0
    for field in fields(Sequences):
        column = getattr(sequences, field.name)
        column.copy_(torch.where(new, told[field.name], column))
    sequences.active.bitwise_and_(told["active"] | new)
    sequences.node_limit.copy_(told["node_limit"])
    trees.count.masked_fill_(new, 0)
