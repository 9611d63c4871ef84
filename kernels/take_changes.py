"""What the host says anew of some slots: their columns of `Sequences`, and trees that begin empty.

One launch; one by one, the columns would take more time than selecting the nodes of a step. Bytes:
8 per slot and column that is new.
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
    told, columns, changed, counts, slots, COLUMNS: tl.constexpr, SLOTS: tl.constexpr
):
    slot = tl.arange(0, SLOTS)
    new = tl.load(changed + slot, mask=slot < slots, other=0) != 0
    for column in tl.static_range(COLUMNS):
        tl.store(columns[column] + slot, tl.load(told[column] + slot, mask=new), mask=new)
    tl.store(counts + slot, tl.zeros((SLOTS,), tl.int32), mask=new)


def take_changes(
    told: Mapping[str, Tensor], changed: Tensor, sequences: Sequences, trees: Trees
) -> None:
    """Take the columns that ``told`` has by the names of `Sequences`, where ``changed`` is not 0.

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
    trees.count.masked_fill_(new, 0)
