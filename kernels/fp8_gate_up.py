"""Gate and up projections of few tokens with SiLU, the product and E4M3 behind them, in one kernel.

For token m, column n of ``I`` and its group ``b`` of 128 columns, with ``weight [2 I, K]``, gates
first::

    g[m, n], u[m, n] = bfloat16(sum_k x[m, k] w[n, k] * w_scale[n] * x_scale[m]), .. w[I + n] ..
    y = g / (1 + exp(-g)) * u
    scale[b, m] = max(amax over b |y[m]|, 2^-100) / 448,  code[m, n] = e4m3(y[m, n] / scale[b, m])

In: as in `fp8_gemm_skinny`. Out: ``float8_e4m3fn [M, I]`` and float32 scales ``[groups, M]``, which
`fp8_gemm_skinny` takes. A program has a group's gates and ups, so nothing of them goes through
memory and no kernel has to look at a whole row; groups of 128 are also finer than a row. Made for
sm_90; on sm_89 its tiles do not fit the registers.

A row's bits depend on that row and the shape of ``weight`` only. Error: that of the product, then
``y`` to 2^-18 of itself before it is rounded once, to 2^-4 or ``scale * 2^-10``. A row whose scale
is NaN is NaN, alone. Moves ``2 I * K`` bytes of weights, and little else.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.arguments import check_tensor
from kernels.e4m3 import quantize_groups_reference, row_amax, scale_of, to_bf16, to_e4m3
from kernels.early_start import begin, bring_near, capability, let_next_in, starts_early
from kernels.fp8_gemm_skinny import fp8_gemm_reference
from kernels.silu_mul_quant import silu_mul, silu_mul_reference
from kernels.skinny_arguments import GROUP
from kernels.skinny_gemm import is_aligned, stages_that_fit, token_blocks
from kernels.skinny_kernel import multiply
from kernels.skinny_table import GATED, Tiling, tiling_for

_GROUP = tl.constexpr(GROUP)
_MOST_TOKENS = 96  # of a program: of more, two sums each would not stay in registers


@triton.jit
def _write(gate, up, gate_scale, up_scale, by_token, codes, scales, n_tile, m, M, N):
    """Codes and scales of a program's group, for a block of tokens."""
    n = n_tile * _GROUP + tl.arange(0, _GROUP)
    inside = n < N
    gate = gate * gate_scale[:, None] * by_token[None, :]
    up = up * up_scale[:, None] * by_token[None, :]
    y = silu_mul(to_bf16(gate).to(tl.float32), to_bf16(up).to(tl.float32))
    y = tl.where(inside[:, None], y, 0.0)
    scale, reciprocal = scale_of(row_amax(y, 0))
    tl.store(scales + n_tile * M + m, scale, mask=m < M)
    code = tl.trans(to_e4m3(y * reciprocal[None, :]))
    at = m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(codes + at, code, mask=(m[:, None] < M) & inside[None, :])


@triton.jit(do_not_specialize=["M", "ahead", "lets_in_first"])
def gate_up(
    x,
    w,
    w_start,
    codes,
    scales,
    w_scale,
    x_scale,
    M,
    N,
    K,
    ahead,
    lets_in_first,
    EVEN_K: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TAIL_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    n_tile, m_tile = tl.program_id(0), tl.program_id(1)
    n = n_tile * _GROUP + tl.arange(0, _GROUP)
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    gate_row = tl.minimum(n, N - 1).to(tl.int64) * K
    if not TMA:
        gate_at = w + gate_row[:, None] + k[None, :]
    x_at = x + m[None, :].to(tl.int64) * K + k[:, None]
    if TAIL_M > 0:
        tail_m = BLOCK_M + tl.arange(0, TAIL_M)
        tail_at = x + tail_m[None, :].to(tl.int64) * K + k[:, None]
    if EARLY:
        if lets_in_first > 0:
            let_next_in(EARLY)
        columns = tl.minimum(ahead, K)
        bring_near(w_start + gate_row, columns)
        bring_near(w_start + gate_row + N.to(tl.int64) * K, columns)
        begin(EARLY)
    # Scales come from memory, too: asked for now, they are there when the sums are.
    gate_scale = tl.load(w_scale + n, mask=n < N, other=0.0)
    up_scale = tl.load(w_scale + N + n, mask=n < N, other=0.0)
    by_token = tl.load(x_scale + m, mask=m < M, other=0.0)
    gate = tl.zeros([_GROUP, BLOCK_M], tl.float32)
    up = tl.zeros([_GROUP, BLOCK_M], tl.float32)
    if TAIL_M > 0:
        by_tail = tl.load(x_scale + tail_m, mask=tail_m < M, other=0.0)
        tail_gate = tl.zeros([_GROUP, TAIL_M], tl.float32)
        tail_up = tl.zeros([_GROUP, TAIL_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K):
        inside = start + k < K
        if TMA:
            gate_tile = w.load([n_tile * _GROUP, start])
            up_tile = w.load([N + n_tile * _GROUP, start])
        elif EVEN_K:
            gate_tile = tl.load(gate_at + start, eviction_policy="evict_first")
            up_tile = tl.load(gate_at + N.to(tl.int64) * K + start, eviction_policy="evict_first")
        else:
            gate_tile = tl.load(gate_at + start, mask=inside[None, :], other=0.0)
            up_at = gate_at + N.to(tl.int64) * K + start
            up_tile = tl.load(up_at, mask=inside[None, :], other=0.0)
        there = (m < M)[None, :] if EVEN_K else (m < M)[None, :] & inside[:, None]
        x_tile = tl.load(x_at + start, mask=there, other=0.0)
        gate = multiply(gate_tile, x_tile, gate, "fp8")
        up = multiply(up_tile, x_tile, up, "fp8")
        if TAIL_M > 0:
            more = (tail_m < M)[None, :] if EVEN_K else (tail_m < M)[None, :] & inside[:, None]
            tail_tile = tl.load(tail_at + start, mask=more, other=0.0)
            tail_gate = multiply(gate_tile, tail_tile, tail_gate, "fp8")
            tail_up = multiply(up_tile, tail_tile, tail_up, "fp8")
    let_next_in(EARLY)
    _write(gate, up, gate_scale, up_scale, by_token, codes, scales, n_tile, m, M, N)
    if TAIL_M > 0:
        _write(
            tail_gate, tail_up, gate_scale, up_scale, by_tail, codes, scales, n_tile, tail_m, M, N
        )


def fp8_gate_up(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    tiling: Tiling | None = None,
    compile_only: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes ``[M, I]`` and scales ``[groups, M]``; both are made unless they are given.

    With ``compile_only`` nothing is launched, as in `skinny_gemm`.

    Raises:
        ValueError: an argument has another shape or dtype than it may have.
    """
    if weight.dim() != 2 or x.dim() != 2 or weight.shape[0] % 2:
        shapes = f"{list(x.shape)}, {list(weight.shape)}"
        raise ValueError(f"x and weight must be matrices, weight of gates and ups, not {shapes}")
    (n, k), rows = weight.shape, len(x)
    inner, fp8 = n // 2, torch.float8_e4m3fn
    groups = triton.cdiv(inner, GROUP)
    codes = x.new_empty((rows, inner)) if codes is None else codes
    scales = x_scale.new_empty((groups, rows)) if scales is None else scales
    check_tensor("weight", weight, (n, k), fp8)
    check_tensor("weight_scale", weight_scale, (n,), torch.float32)
    check_tensor("x", x, (rows, k), fp8)
    check_tensor("x_scale", x_scale, (rows,), torch.float32)
    check_tensor("codes", codes, (rows, inner), fp8)
    check_tensor("scales", scales, (groups, rows), torch.float32)
    if rows == 0:
        return codes, scales
    tiling = tiling or tiling_for(GATED, n, k)
    main, tail = token_blocks(min(rows, _MOST_TOKENS), tiling)
    if rows > _MOST_TOKENS:
        main, tail = 64, 0
    launch, device = tiling.launch(main + tail), weight.device
    aligned, early = is_aligned(weight), starts_early(device)
    tma = launch.tma and aligned and capability(device) >= (9, 0)
    block = [GROUP, tiling.block_k]
    grid = (groups, triton.cdiv(rows, main + tail))
    run = partial(gate_up.warmup, grid=grid) if compile_only else gate_up[grid]
    run(
        x,
        TensorDescriptor.from_tensor(weight, block) if tma else weight,
        weight,
        codes,
        scales,
        weight_scale,
        x_scale,
        rows,
        inner,
        k,
        launch.ahead if aligned else 0,
        int(launch.lets_in_first),
        EVEN_K=k % tiling.block_k == 0,
        TMA=tma,
        BLOCK_M=main,
        TAIL_M=tail,
        BLOCK_K=tiling.block_k,
        EARLY=early,
        launch_pdl=early,
        num_warps=launch.warps,
        num_stages=stages_that_fit(
            launch.stages, tiling.block_k * (2 * GROUP + main + tail), device
        ),
    )
    return codes, scales


def fp8_gate_up_reference(
    x: torch.Tensor, x_scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch, products in float64."""
    both = fp8_gemm_reference(x, x_scale, weight, weight_scale).bfloat16()
    codes, scales = quantize_groups_reference(silu_mul_reference(both), GROUP)
    return codes, scales.T.contiguous()
