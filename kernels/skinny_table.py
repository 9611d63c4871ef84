"""How skinny products are cut up, by weight shape: data, and one rule for all other shapes.

`Tiling` decides in which order a row is summed, so it is a function of (operands, N, K) and of
nothing else: never of the number of rows. A `Launch` changes no bit, so few rows and many may have
one each.
"""

from __future__ import annotations

from dataclasses import dataclass

# What the weights and the tokens are held in while they are multiplied.
FP8 = "fp8"
W8A16 = "w8a16"
BF16 = "bf16"

ELEMENT_BYTES = {FP8: 1, W8A16: 1, BF16: 2}
# Programs that keep a large GPU busy: twice the 132 processors of an H100 or H200.
_PROGRAMS = 264
_MIN_SLICE = 512
_MAX_SPLITS = 8
_FEW, _SOME = 16, 32  # tokens of a tile; above, tokens are as much of the traffic as weights


@dataclass(frozen=True, slots=True)
class Launch:
    """How programs are laid out and fed.

    Attributes:
        block_n: weight rows of a program, 64, 128 or 256: what sm_90 multiplies with instructions
            of its own (``wgmma``).
        stages: tiles that are on their way from memory at a time, where they fit.
        tma: whether weights are loaded by descriptor, where device and alignment allow it.
        ahead: how many columns of a slice are fetched into the shared cache while the kernel before
            still runs.
        tail: whether tokens that a block of 64 leaves over get a small block of their own, not all
            of them one of 128.
        lets_in_first: whether the next kernel may start with this one, not only as this one ends.
    """

    block_n: int
    warps: int
    stages: int
    tma: bool = True
    ahead: int = 512
    lets_in_first: bool = False
    tail: bool = True


@dataclass(frozen=True, slots=True)
class Tiling:
    """K is multiplied ``block_k`` columns at a time, in ``splits`` slices with a program each.

    few, some, many: launches of tiles of up to 16 tokens, of 32 and of more; some is few if None.
    """

    block_k: int
    splits: int
    few: Launch
    many: Launch
    some: Launch | None = None

    def launch(self, tokens: int) -> Launch:
        """For tiles of so many tokens."""
        if tokens > _SOME:
            return self.many
        return self.few if self.some is None or tokens <= _FEW else self.some


# (operands, N, K) to the best tiling there: of `foredraft bench kernels --tune`, launches of layers
# of 4096 and 8192 then by the time of whole steps.
TUNED: dict[tuple[str, int, int], Tiling] = {
    ("fp8", 6144, 4096): Tiling(
        256,
        1,
        Launch(64, 4, 6, tma=False, lets_in_first=True),
        Launch(64, 4, 8, lets_in_first=True),
    ),
    ("fp8", 4096, 4096): Tiling(256, 2, Launch(64, 4, 6, tma=False), Launch(64, 4, 4, tma=False)),
    ("fp8", 28672, 4096): Tiling(
        128, 1, Launch(256, 8, 4), Launch(128, 4, 4, ahead=0), some=Launch(128, 8, 4, ahead=0)
    ),
    ("fp8", 4096, 14336): Tiling(
        256, 2, Launch(64, 4, 6, tma=False, ahead=1024), Launch(64, 4, 6, tma=False, ahead=0)
    ),
    ("fp8", 10240, 8192): Tiling(
        256,
        1,
        Launch(128, 4, 6),
        Launch(128, 8, 4, lets_in_first=True),
        some=Launch(128, 4, 6, lets_in_first=True),
    ),
    ("fp8", 8192, 8192): Tiling(
        256, 1, Launch(64, 4, 6, lets_in_first=True), Launch(64, 4, 6, lets_in_first=True)
    ),
    ("fp8", 57344, 8192): Tiling(
        256,
        1,
        Launch(256, 8, 4, lets_in_first=True),
        Launch(128, 8, 4, ahead=0),
        some=Launch(64, 4, 4, lets_in_first=True),
    ),
    ("fp8", 8192, 28672): Tiling(
        256,
        2,
        Launch(128, 8, 4, lets_in_first=True),
        Launch(128, 4, 4, lets_in_first=True),
        some=Launch(128, 8, 4, tma=False, ahead=0),
    ),
    ("fp8", 128256, 4096): Tiling(256, 1, Launch(256, 8, 4, ahead=0), Launch(128, 8, 4)),
    ("fp8", 128256, 8192): Tiling(
        256, 1, Launch(256, 8, 8, lets_in_first=True), Launch(128, 8, 6, lets_in_first=True)
    ),
}


def tiling_for(operands: str, n: int, k: int) -> Tiling:
    """The tiling of a product with weights ``[n, k]``."""
    return TUNED.get((operands, n, k)) or untuned(operands, n, k)


def untuned(operands: str, n: int, k: int) -> Tiling:
    """Narrow tiles, and slices of K until there are enough programs for a large GPU.

    A slice has at least 512 columns: the sum of partial results must stay cheap beside it. Many
    tokens are read by half as many programs.
    """
    tiles = -(-n // 64)
    splits = min(max(_PROGRAMS // tiles, 1), max(k // _MIN_SLICE, 1), _MAX_SPLITS)
    few, many = Launch(block_n=64, warps=4, stages=6), Launch(block_n=128, warps=8, stages=4)
    return Tiling(128 // ELEMENT_BYTES[operands], splits, few, many)
