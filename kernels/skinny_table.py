"""How skinny products are cut up, by weight shape: data, and one rule for all other shapes.

A tiling decides in which order a row is summed, so it is a function of (operands, N, K) and of
nothing else: never of the number of rows. ``warps``, ``stages``, ``tma`` and ``ahead`` change no
bit.
"""

from __future__ import annotations

from dataclasses import dataclass

# What the weights and the tokens are held in while they are multiplied.
FP8 = "fp8"
W8A16 = "w8a16"
BF16 = "bf16"

_ELEMENT_BYTES = {FP8: 1, W8A16: 1, BF16: 2}
# Programs that keep a large GPU busy: twice the 132 processors of an H100 or H200.
_PROGRAMS = 264
_MIN_SLICE = 512
_MAX_SPLITS = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """A program multiplies ``block_n`` weight rows, ``block_k`` columns at a time.

    Attributes:
        block_n: from 64 on, sm_90 multiplies with instructions of its own (``wgmma``); below, tiles
            are many and need fewer slices, and FP8 is multiplied as float16.
        splits: into how many slices K is cut; each slice is a program of its own.
        stages: tiles that are on their way from memory at a time, where they fit.
        tma: whether weights are loaded by descriptor, where device and alignment allow it.
        ahead: how many columns of a slice are fetched into the shared cache while the kernel before
            still runs, with programmatic dependent launch; 0 to start after it. Needs ``tma``.
    """

    block_n: int
    block_k: int
    splits: int
    warps: int
    stages: int
    tma: bool = True
    ahead: int = 0


# Filled by `foredraft bench kernels --tune`: (operands, N, K) to the fastest tiling there.
TUNED: dict[tuple[str, int, int], Tiling] = {}


def tiling_for(operands: str, n: int, k: int) -> Tiling:
    """The tiling of a product with weights ``[n, k]``."""
    return TUNED.get((operands, n, k)) or untuned(operands, n, k)


def untuned(operands: str, n: int, k: int) -> Tiling:
    """Narrow tiles, and slices of K until there are enough programs for a large GPU.

    A slice has at least 512 columns: the sum of partial results must stay cheap beside it.
    """
    block_k = 128 // _ELEMENT_BYTES[operands]
    tiles = -(-n // 64)
    splits = min(max(_PROGRAMS // tiles, 1), max(k // _MIN_SLICE, 1), _MAX_SPLITS)
    return Tiling(block_n=64, block_k=block_k, splits=splits, warps=4, stages=6)
