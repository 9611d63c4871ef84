"""The rows of a pass over memory in which every sequence lies in one piece.

Memory of one layer is [2, kv_heads, slots, head_dim], keys before values. A row sees the first
``seen`` slots of its sequence and, as a node, the slots of its line: its ancestors and its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Columns of one table, int64 [rows] each.

    position: of its token. slot: where its entry goes, counted over the whole memory.
    first: the slot at which its sequence begins. seen: so many from there on it sees.
    depth: so many of ``lines`` [rows, n], counted from ``first``, it sees besides; n is a power of
        two, at least 16.
    """

    position: Tensor
    slot: Tensor
    first: Tensor
    seen: Tensor
    depth: Tensor
    lines: Tensor

    def __len__(self) -> int:
        return len(self.position)

    @property
    def stride(self) -> int:
        """From one row to the next, in numbers."""
        return self.position.stride(0)


def check_rows(rows: SlotRows) -> None:
    """Raises ValueError if they are not columns of one table."""
    for name in ("position", "slot", "first", "seen", "depth"):
        check_column(f"rows.{name}", getattr(rows, name), len(rows), rows.stride, torch.int64)
    count, width = rows.lines.shape
    if rows.lines.dtype != torch.int64 or rows.lines.stride() != (rows.stride, 1):
        raise ValueError("rows.lines must be adjacent columns of the table of rows.position")
    if count != len(rows) or width < 16 or width & (width - 1):
        allowed = f"[{len(rows)}, a power of two from 16 on]"
        raise ValueError(f"rows.lines must be {allowed}, not {[count, width]}")


def check_column(name: str, column: Tensor, rows: int, stride: int, dtype: torch.dtype) -> None:
    """Raises ValueError unless it is one number per row, ``stride`` apart."""
    if column.shape != (rows,) or column.dtype != dtype or column.stride() != (stride,):
        found = f"{column.dtype} {list(column.shape)}, {list(column.stride())} apart"
        raise ValueError(f"{name} must be {dtype} {[rows]}, {stride} apart, not {found}")


def check_memory(memory: Tensor, heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ValueError unless it is one layer's, of these widths, in one piece."""
    planes = (2, kv_heads, memory.shape[2] if memory.dim() == 4 else 0, head_dim)
    if memory.shape != planes or memory.dtype != torch.bfloat16 or not memory.is_contiguous():
        found = f"{memory.dtype} {list(memory.shape)}"
        wanted = f"contiguous torch.bfloat16 [2, {kv_heads}, slots, {head_dim}]"
        raise ValueError(f"memory must be {wanted}, not {found}")
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of the {kv_heads} KV heads, not {heads}")
