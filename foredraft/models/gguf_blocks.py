"""The matrices of a GGUF file in blocks of 32, for kernels that read them as they are.

The float weights say what the model is; these are the same numbers in a quarter or an eighth of the
bytes. `foredraft.engine.native.block_file` describes the file and reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from foredraft.models.gguf_reader import GgufFile
from foredraft.models.gguf_weights import in_state_order, state_name

_Q4_0, _Q4_1, _Q8_0 = (
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q8_0,
)
_HALF = 2  # bytes of a float16
_JOINED = re.compile(r"(?<=self_attn\.)[qkv]_proj|(?<=mlp\.)(?:gate|up)_proj")


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """A matrix, w = scale * level + least, without ``least`` w = scale * level.

    levels: int8 [rows, columns], or two of 4 bits in a byte, uint8 [rows, columns / 2].
    scales, least: float16 [rows, columns / 32].
    """

    levels: NDArray[Any]
    scales: NDArray[np.float16]
    least: NDArray[np.float16] | None

    @classmethod
    def of(cls, kind: GGMLQuantizationType, data: NDArray[np.uint8]) -> GgufBlocks | None:
        """From the bytes [rows, bytes of a row] of a matrix; None: of a kind that has no such form.

        So are numbers that kernels do not take: scales that are not finite, levels of -128.
        """
        if kind not in (_Q4_0, _Q4_1, _Q8_0):
            return None
        blocks = data.reshape(len(data), -1, GGML_QUANT_SIZES[kind][1])
        scales, rest = _halves(blocks), blocks[..., _HALF:]
        if kind == _Q8_0:
            made = cls(rest.view(np.int8).reshape(len(data), -1), scales, None)
        elif kind == _Q4_0:
            with np.errstate(over="ignore"):  # it is looked at below
                made = cls(_packed(rest), scales, np.float16(-8) * scales)
        else:
            made = cls(_packed(rest[..., _HALF:]), scales, _halves(rest))
        return made if made._sound() else None

    def _sound(self) -> bool:
        finite = np.isfinite(self.scales).all()
        if self.least is None:
            return bool(finite) and int(self.levels.min()) > -128
        return bool(finite and np.isfinite(self.least).all())


def llama_blocks(file: GgufFile) -> dict[str, NDArray[Any]] | None:
    """The content of the file of blocks.

    None if a matrix has no such form, or if not all that a layer joins to one matrix (queries, keys
    and values; gate and up) have as many bits.
    """
    found: dict[str, NDArray[Any]] = {}
    types: dict[str, Any] = {}
    for gguf_name, kind, data in file.stored():
        if data.ndim != 2:
            continue
        name = state_name(gguf_name)
        blocks = GgufBlocks.of(kind, data)
        if blocks is None:
            return None
        dtype = blocks.levels.dtype
        if types.setdefault(_JOINED.sub("joined", name), dtype) != dtype:
            return None
        parts = {"levels": blocks.levels, "scales": blocks.scales, "least": blocks.least}
        for part, values in parts.items():
            if values is not None:
                found[f"{name}.{part}"] = in_state_order(file, name, values)
    return found


def _halves(blocks: NDArray[np.uint8]) -> NDArray[np.float16]:
    """The float16 at the beginning of each block: [rows, blocks]."""
    return np.ascontiguousarray(blocks[..., :_HALF]).view(np.float16)[..., 0]


def _packed(halves: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[rows, blocks, 16] to [rows, columns / 2].

    A byte of GGUF holds columns i and i + 16 of its block, one of ours 2i and 2i + 1.
    """
    columns = np.concatenate((halves & 15, halves >> 4), axis=2)
    packed: NDArray[np.uint8] = columns[..., 0::2] | columns[..., 1::2] << 4
    return packed.reshape(len(halves), -1)
