"""Launches `skinny_kernel`: ``out = x w^T`` for few rows of ``x``, cut up by `skinny_table`."""

from __future__ import annotations

from functools import partial

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.early_start import capability, starts_early
from kernels.skinny_arguments import Extras, Workspace, check_room, checked_output
from kernels.skinny_kernel import skinny
from kernels.skinny_table import Tiling, tiling_for

_MAX_TOKENS = 128
# Blocks of tokens of a program: the second is for what the first, a power of two, leaves over.
_BLOCKS = ((16, 0), (32, 0), (32, 16), (64, 0), (64, 16), (64, 32), (_MAX_TOKENS, 0))
# Bytes of a processor's own memory that tiles may fill; sm_89 has 100 KB, sm_90 228 KB.
_TILE_MEMORY = {8: 88 << 10, 9: 208 << 10}


def workspace_for(
    operands: str, weight: torch.Tensor, rows: int, tiling: Tiling | None = None
) -> Workspace:
    """Room for products of up to ``rows`` tokens with weights like ``weight``."""
    n, k = weight.shape
    tiling = tiling or tiling_for(operands, n, k)
    tokens = sum(token_blocks(rows, tiling))
    block_n = tiling.launch(tokens).block_n
    count = triton.cdiv(n, block_n) * triton.cdiv(rows, tokens) if tiling.splits > 1 else 0
    size = count * tiling.splits * block_n * tokens
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
    main, tail = token_blocks(rows, tiling)
    tokens = main + tail
    launch = tiling.launch(tokens)
    grid = (triton.cdiv(n, launch.block_n), tiling.splits, triton.cdiv(rows, tokens))
    check_room(workspace, grid, launch.block_n * tokens)
    aligned = _is_aligned(weight)
    tma = launch.tma and aligned and capability(weight.device) >= (9, 0)
    early = starts_early(weight.device)
    run = partial(skinny.warmup, grid=grid) if compile_only else skinny[grid]
    run(
        x,
        TensorDescriptor.from_tensor(weight, [launch.block_n, tiling.block_k]) if tma else weight,
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
        launch.ahead if aligned else 0,
        int(launch.lets_in_first),
        OPERANDS=operands,
        SILU_MUL=extras.silu_mul,
        W_SCALED=extras.w_scale is not None,
        X_SCALED=extras.x_scale is not None,
        BIASED=extras.bias is not None,
        RESIDUAL=extras.residual is not None,
        BF16_OUT=out.dtype == torch.bfloat16,
        EVEN_K=k % tiling.block_k == 0,
        TMA=tma,
        BLOCK_N=launch.block_n,
        BLOCK_M=main,
        TAIL_M=tail,
        BLOCK_K=tiling.block_k,
        SPLITS=tiling.splits,
        EARLY=early,
        launch_pdl=early,
        num_warps=launch.warps,
        num_stages=_stages(tiling, tokens, x, weight, extras),
    )
    return out


def token_blocks(rows: int, tiling: Tiling) -> tuple[int, int]:
    """The smallest blocks that hold so many tokens, or a program's share of more."""
    wanted = _BLOCKS if tiling.launch(rows).tail else [each for each in _BLOCKS if each[1] == 0]
    return next((blocks for blocks in wanted if sum(blocks) >= rows), _BLOCKS[-1])


def _stages(
    tiling: Tiling, tokens: int, x: torch.Tensor, weight: torch.Tensor, extras: Extras
) -> int:
    """As many as the table wants and the processor's memory holds; tensor cores need two."""
    launch = tiling.launch(tokens)
    x_bytes = tokens * x.element_size() * (2 if extras.silu_mul else 1)
    one = tiling.block_k * (launch.block_n * weight.element_size() + x_bytes)
    major, _ = capability(weight.device)
    return max(2, min(launch.stages, _TILE_MEMORY[min(major, 9)] // one))


def _is_aligned(weight: torch.Tensor) -> bool:
    """Whether rows can be loaded by descriptor and fetched ahead."""
    row_bytes = weight.shape[1] * weight.element_size()
    return row_bytes % 16 == 0 and weight.data_ptr() % 16 == 0
