"""Keys and values of one sequence as bfloat16, side by side: what many rows read many times.

bfloat16 holds a code times its power of two exactly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import to_bf16
from kernels.kv_layout import BLOCK, KVLayer, place_of, power_of_two, widen
from kernels.tree_layout import StepRows

_TOKENS = 128  # of a turn; whole ones are written
_PROGRAMS = 64  # of a plane: most of a long context is not there yet


def room_for(layer: KVLayer, blocks: int) -> Tensor:
    """Zeros for all that a table of so many blocks holds: [2, kv_heads, tokens, width]."""
    _, kv_heads, _, _, head_dim = layer.codes.shape
    shape = 2, kv_heads, _tokens(blocks), triton.next_power_of_2(head_dim)
    return torch.zeros(shape, dtype=torch.bfloat16, device=layer.codes.device)


def check_widened(widened: Tensor, layer: KVLayer, blocks: int) -> None:
    """Raises ValueError unless it is what `room_for` gives."""
    _, kv_heads, _, _, head_dim = layer.codes.shape
    shape = 2, kv_heads, _tokens(blocks), triton.next_power_of_2(head_dim)
    check_tensor("widened", widened, shape, torch.bfloat16)


def _tokens(blocks: int) -> int:
    return -(-blocks * BLOCK // _TOKENS) * _TOKENS


def widen_kv(layer: KVLayer, tables: Tensor, rows: StepRows, widened: Tensor) -> None:
    """Write positions up to the last row that is no padding, and zeros behind it in its turn.

    Args:
        tables: int32 [1, blocks].
        rows: of a chunk: of its first position and its count.
        widened: what `room_for` gives.

    Raises:
        ValueError: ``widened`` has another shape or dtype.
    """
    check_widened(widened, layer, tables.shape[1])
    _, kv_heads, tokens, width = widened.shape
    programs = min(tokens // _TOKENS, _PROGRAMS)
    widen_kv_kernel[(programs, 2 * kv_heads)](
        layer.codes,
        layer.exponents,
        tables,
        rows.position,
        rows.count,
        widened,
        layer.exponents[0, 0].numel(),
        tokens,
        HEAD_DIM=layer.codes.shape[4],
        WIDTH=width,
        TOKENS=_TOKENS,
        num_warps=8,
    )


@triton.jit
def widen_kv_kernel(
    codes, exponents, table, position, used, widened, places, room,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Programs of a plane, keys or values of a KV head, take its turns one after another."""
    plane = tl.program_id(1).to(tl.int64)
    end = tl.load(position) + tl.load(used)
    lane = tl.arange(0, WIDTH)
    for turn in tl.range(tl.program_id(0), tl.cdiv(end, TOKENS), tl.num_programs(0)):
        token = turn * TOKENS + tl.arange(0, TOKENS)
        seen = token < end
        place = plane * places + place_of(table, token, seen, True)
        inside = seen[:, None] & (lane < HEAD_DIM)[None, :]
        code = tl.load(codes + place[:, None] * HEAD_DIM + lane[None, :], mask=inside, other=0.0)
        power = power_of_two(tl.load(exponents + place, mask=seen, other=0))
        values = to_bf16(widen(code).to(tl.float32) * power[:, None])
        tl.store(widened + (plane * room + token)[:, None] * WIDTH + lane[None, :], values)
