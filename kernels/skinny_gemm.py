"""Launches `skinny_kernel`: ``out = x w^T`` for few rows of ``x``, cut up by `skinny_table`."""

from __future__ import annotations

from functools import partial

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.e4m3 import INTERPRETED
from kernels.skinny_arguments import Extras, Workspace, check_room, checked_output
from kernels.skinny_kernel import skinny
from kernels.skinny_table import Tiling, tiling_for

_MAX_TOKENS = 128
_MIN_TOKENS = 16
# Bytes of a processor's own memory that tiles may fill; sm_89 has 100 KB, sm_90 228 KB.
_TILE_MEMORY = {8: 88 << 10, 9: 208 << 10}


def workspace_for(
    operands: str, weight: torch.Tensor, rows: int, tiling: Tiling | None = None
) -> Workspace:
    """Room for products of up to ``rows`` tokens with weights like ``weight``."""
    n, k = weight.shape
    tiling = tiling or tiling_for(operands, n, k)
    tokens = _tokens(rows)
    count = triton.cdiv(n, tiling.block_n) * triton.cdiv(rows, tokens) if tiling.splits > 1 else 0
    size = count * tiling.splits * tiling.block_n * tokens
    return Workspace(
        partials=torch.empty(size, dtype=torch.float32, device=weight.device),
        arrivals=torch.zeros(count, dtype=torch.int32, device=weight.device),
    )


def skinny_gemm(
    operands: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    extras: Extras,
    *,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    tiling: Tiling | None = None,
    compile_only: bool = False,
) -> torch.Tensor:
    """``x w^T`` with `Extras`: ``[M, N]``, bfloat16 or float32.

    ``out`` and ``workspace`` are made unless they are given. With ``compile_only`` nothing is
    launched: several kernels can so be compiled at once, in Triton's ``AsyncCompileMode``.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    rows = x.shape[0]
    out = checked_output(operands, x, weight, extras, out, dtype)
    if rows == 0:
        return out
    n, k = weight.shape
    tiling = tiling or tiling_for(operands, n, k)
    workspace = workspace or workspace_for(operands, weight, rows, tiling)
    tokens = _tokens(rows)
    grid = (triton.cdiv(n, tiling.block_n), tiling.splits, triton.cdiv(rows, tokens))
    check_room(workspace, grid, tiling.block_n * tokens)
    tma = tiling.tma and _takes_descriptor(weight)
    ahead = tiling.ahead if tma and not INTERPRETED else 0
    run = partial(skinny.warmup, grid=grid) if compile_only else skinny[grid]
    run(
        x,
        TensorDescriptor.from_tensor(weight, [tiling.block_n, tiling.block_k]) if tma else weight,
        weight,
        out,
        extras.w_scale,
        extras.x_scale,
        extras.bias,
        extras.residual,
        workspace.partials,
        workspace.arrivals,
        rows,
        n,
        k,
        x.stride(0),
        OPERANDS=operands,
        SILU_MUL=extras.silu_mul,
        W_SCALED=extras.w_scale is not None,
        X_SCALED=extras.x_scale is not None,
        BIASED=extras.bias is not None,
        RESIDUAL=extras.residual is not None,
        BF16_OUT=out.dtype == torch.bfloat16,
        EVEN_K=k % tiling.block_k == 0,
        TMA=tma,
        BLOCK_N=tiling.block_n,
        BLOCK_M=tokens,
        BLOCK_K=tiling.block_k,
        SPLITS=tiling.splits,
        AHEAD=ahead,
        launch_pdl=ahead > 0,
        num_warps=tiling.warps,
        num_stages=_stages(tiling, tokens, x, weight, extras),
    )
    return out


def _tokens(rows: int) -> int:
    """How many tokens a tile is wide."""
    width: int = triton.next_power_of_2(rows)
    return min(max(width, _MIN_TOKENS), _MAX_TOKENS)


def _stages(
    tiling: Tiling, tokens: int, x: torch.Tensor, weight: torch.Tensor, extras: Extras
) -> int:
    """As many as the table wants and the processor's memory holds; tensor cores need two."""
    x_bytes = tokens * x.element_size() * (2 if extras.silu_mul else 1)
    one = tiling.block_k * (tiling.block_n * weight.element_size() + x_bytes)
    major, _ = capability(weight.device)
    return max(2, min(tiling.stages, _TILE_MEMORY[min(major, 9)] // one))


def _takes_descriptor(weight: torch.Tensor) -> bool:
    row_bytes = weight.shape[1] * weight.element_size()
    aligned = row_bytes % 16 == 0 and weight.data_ptr() % 16 == 0
    return aligned and capability(weight.device) >= (9, 0)


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability; the interpreter's CPU can do all that sm_90 can."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
