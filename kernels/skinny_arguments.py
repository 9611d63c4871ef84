"""What a skinny product may be given beside its two matrices, and whether all of it fits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.skinny_table import FP8, W8A16


@dataclass(frozen=True, slots=True)
class Extras:
    """What may be done to sums before they are written, and to tokens before they are multiplied.

    Attributes:
        w_scale, x_scale: float32, one per weight row ``[N]`` and per token ``[M]``.
        bias: ``[N]``, float32 or bfloat16.
        residual: bfloat16 ``[M, N]``, added after all else; may be the output.
        silu_mul: ``x`` is ``[M, 2 K]``, gates first, and SiLU(gate) * up is multiplied. For FP8 it
            is quantised per token and tile of K.
    """

    w_scale: torch.Tensor | None = None
    x_scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    silu_mul: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where slices leave partial sums, and how many of a tile have arrived (zero between runs).

    Products that may run at the same time need one each.
    """

    partials: torch.Tensor
    arrivals: torch.Tensor


def check_room(workspace: Workspace, grid: tuple[int, int, int], tile: int) -> None:
    """Whether tiles of so many sums fit, ``grid`` being (tiles of N, slices of K, tiles of M).

    Raises:
        ValueError: they do not.
    """
    n_tiles, splits, m_tiles = grid
    if splits == 1:
        return
    arrivals = n_tiles * m_tiles
    partials = arrivals * splits * tile
    if workspace.arrivals.numel() < arrivals or workspace.partials.numel() < partials:
        raise ValueError(f"workspace must hold {partials} partial sums and {arrivals} arrivals")


def checked_output(
    operands: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    extras: Extras,
    out: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The output, new if there is none, after every argument has been looked at.

    Raises:
        ValueError: one has another shape or dtype than it may have.
    """
    fp8, bf16, f32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
    codes = operands == FP8 and not extras.silu_mul
    if weight.dim() != 2 or x.dim() != 2:
        raise ValueError(
            f"x and weight must be matrices, not {list(x.shape)}, {list(weight.shape)}"
        )
    n, k = weight.shape
    rows = x.shape[0]
    _check("weight", weight, (n, k), (fp8 if operands in (FP8, W8A16) else bf16,))
    _check("x", x, (rows, 2 * k if extras.silu_mul else k), (fp8 if codes else bf16,))
    _check("w_scale", extras.w_scale, (n,), (f32,))
    _check("x_scale", extras.x_scale, (rows,), (f32,))
    _check("bias", extras.bias, (n,), (f32, bf16))
    _check("residual", extras.residual, (rows, n), (bf16,))
    if out is None:
        out = x.new_empty((rows, n), dtype=dtype)
    _check("out", out, (rows, n), (bf16, f32))
    return out


def _check(
    name: str,
    tensor: torch.Tensor | None,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    if tensor is None:
        return
    whole = tensor.is_contiguous() or (name == "x" and tensor.dim() == 2 and tensor.stride(1) == 1)
    if tensor.shape != shape or tensor.dtype not in dtypes or not whole:
        wanted = " or ".join(map(str, dtypes))
        found = f"{tensor.dtype} {list(tensor.shape)}"
        raise ValueError(f"{name} must be contiguous {wanted} {list(shape)}, not {found}")
