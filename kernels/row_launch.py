"""What the launchers of kernels with one program per row have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Values of a row that one thread holds at a time; more would spill.
_PER_THREAD = 16
_MAX_WARPS = 32


def row_warps(block: int) -> int:
    """How many warps hold a row of ``block`` values, a power of two."""
    return min(max(block // (32 * _PER_THREAD), 1), _MAX_WARPS)


def checked_rows(name: str, rows: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
    """The tensor, if it is a contiguous bfloat16 matrix, and of this shape if one is given.

    Raises:
        ValueError: it is not.
    """
    fits = rows.dim() == 2 and (shape is None or list(rows.shape) == list(shape))
    if not fits or rows.dtype != torch.bfloat16 or not rows.is_contiguous():
        wanted = "a matrix" if shape is None else list(shape)
        found = f"{rows.dtype} {list(rows.shape)}"
        raise ValueError(f"{name} must be contiguous torch.bfloat16 {wanted}, not {found}")
    return rows


def checked_codes(
    x: torch.Tensor, width: int, codes: torch.Tensor | None, scales: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where codes of at least ``width`` columns and scales of the rows of ``x`` go; new if None.

    Raises:
        ValueError: what is given does not fit.
    """
    rows = x.shape[0]
    if codes is None:
        codes = x.new_empty((rows, width), dtype=torch.float8_e4m3fn)
    if scales is None:
        scales = x.new_empty(rows, dtype=torch.float32)
    fits = codes.dim() == 2 and codes.shape[0] == rows and codes.shape[1] >= width
    if not fits or codes.dtype != torch.float8_e4m3fn or not codes.is_contiguous():
        raise ValueError(
            f"codes must be contiguous torch.float8_e4m3fn [{rows}, at least {width}], "
            f"not {codes.dtype} {list(codes.shape)}"
        )
    if scales.shape != (rows,) or scales.dtype != torch.float32 or not scales.is_contiguous():
        found = f"{scales.dtype} {list(scales.shape)}"
        raise ValueError(f"scales must be contiguous torch.float32 [{rows}], not {found}")
    return codes, scales
