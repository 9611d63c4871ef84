"""Products of blocks: right, and a row has its own bits in any company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.block_product import FIELDS, TILE, compiled_products, pack, reference
from kernels.cpu.block_rows import BLOCK
from kernels.cpu.job import Job, float_bits
from kernels.cpu.machine import vector_lanes
from kernels.cpu.team import Team

EPS = 1e-5
TEAM = Team(2)
ROWS = 23  # whole groups of rows of either width, and what is left of them
WIDTHS = sorted({8, vector_lanes()})
SHAPES = [(16, 32), (48, 64), (112, 96), (192, 1536)]  # outputs, columns

Weights = tuple[Tensor, Tensor, Tensor | None]


def weights(bits: int, outputs: int, columns: int, seed: int = 0) -> Weights:
    random = torch.Generator().manual_seed(seed)
    shape, blocks = (outputs, columns), (outputs, columns // BLOCK)
    scales = (torch.rand(blocks, generator=random) - 0.3).half()
    if bits == 8:
        return torch.randint(-127, 128, shape, generator=random, dtype=torch.int8), scales, None
    levels = torch.randint(0, 16, shape, generator=random, dtype=torch.uint8)
    return levels, scales, torch.randn(blocks, generator=random).half()


def run(
    source: str,
    x: Tensor,
    held: Weights,
    gamma: Tensor | None = None,
    y: Tensor | None = None,
    lanes: int | None = None,
) -> Tensor:
    """f(x) Wᵀ, added to ``y`` if that is given; rows of x may be wider than what is read."""
    levels, scales, least = held
    outputs, columns = levels.shape
    packed = pack(levels, scales, least, lanes)
    result = torch.empty(len(x), outputs + 8) if y is None else functional.pad(y, (0, 8))
    rows = torch.empty(len(x), columns, dtype=torch.int16)
    row_scales = torch.empty(len(x), columns // BLOCK, 2)
    job = Job(
        FIELDS,
        x=x.data_ptr(),
        y=result.data_ptr(),
        weights=packed.data_ptr(),
        levels=rows.data_ptr(),
        scales=row_scales.data_ptr(),
        gamma=0 if gamma is None else gamma.data_ptr(),
        eps=float_bits(EPS),
        rows=len(x),
        blocks=columns // BLOCK,
        tiles=outputs // TILE,
        x_stride=x.stride(0),
        y_stride=result.stride(0),
        add=int(y is not None),
        team=TEAM.address,
    )
    job.run(compiled_products(8 if least is None else 4, lanes)[source])
    return result[:, :outputs]


def assert_near(found: Tensor, x: Tensor, held: Weights, expected: Tensor) -> None:
    """Within what rows of 16 bits and float32 sums may differ by, from rows ``x`` as they are."""
    levels, scales, least = held
    ones = torch.eye(x.shape[1], dtype=torch.float64)
    dense = reference(ones, *held).T.abs()
    largest = x.double().unflatten(1, (-1, BLOCK)).abs().amax(-1).repeat_interleave(BLOCK, 1)
    sizes = reference(x.abs(), levels.abs(), scales.abs(), None if least is None else least.abs())
    blocks = x.shape[1] // BLOCK
    bound = largest @ dense.T * 2.0**-15.9 + (blocks + 4) * 2.0**-24 * sizes
    assert ((found.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_plain_rows_are_near_float64_and_apart_from_each_other(
    bits: int, shape: tuple[int, int], lanes: int
) -> None:
    held = weights(bits, *shape)
    x = torch.randn(ROWS, shape[1], generator=torch.Generator().manual_seed(1))
    x[2] = 0.0
    x[3] *= 1e-20
    x[4] *= 1e20
    found = run("plain", x, held, lanes=lanes)
    assert_near(found, x, held, reference(x, *held))
    for count in range(1, ROWS):
        few = run("plain", x[:count].contiguous(), held, lanes=lanes)
        assert torch.equal(few, found[:count]), count
        alone = run("plain", x[count : count + 1].contiguous(), held, lanes=lanes)
        assert torch.equal(alone[0], found[count]), count


@pytest.mark.skipif(len(WIDTHS) == 1, reason="a processor with vectors of one width")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_wide_vectors_change_no_bits(bits: int, shape: tuple[int, int]) -> None:
    """Nor do the largest numbers there are, of which sums would be the first to overflow."""
    levels, scales, least = weights(bits, *shape)
    levels[::2] = 15 if bits == 4 else 127
    x = torch.randn(ROWS, shape[1], generator=torch.Generator().manual_seed(5))
    x[::3] = 3.0
    narrow, wide = (run("plain", x, (levels, scales, least), lanes=lanes) for lanes in WIDTHS)
    assert torch.equal(narrow, wide)


@pytest.mark.parametrize("bits", [4, 8])
def test_norms_gates_and_sums(bits: int) -> None:
    held = weights(bits, 48, 96)
    random = torch.Generator().manual_seed(2)
    x, gamma = torch.randn(5, 96, generator=random), torch.rand(96, generator=random) + 0.5
    normed = functional.rms_norm(x.double(), (96,), gamma.double(), EPS)
    assert_near(run("normed", x, held, gamma), normed, held, reference(normed, *held))
    before = torch.randn(5, 48, generator=random)
    both = torch.randn(5, 2 * 96, generator=random) * 4
    gated = functional.silu(both[:, :96].double()) * both[:, 96:]
    expected = before + reference(gated, *held)
    assert_near(run("gated", both, held, y=before), gated, held, expected)
    assert_near(run("plain", x, held, y=before), x, held, before + reference(x, *held))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("source", ["plain", "normed", "gated"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_what_is_not_finite_stays_in_its_row(bits: int, source: str, bad: float) -> None:
    held = weights(bits, 16, 64)
    x = torch.randn(6, 128, generator=torch.Generator().manual_seed(3))
    gamma = torch.ones(64)
    good = run(source, x, held, gamma)
    x[3, 40] = bad
    found = run(source, x, held, gamma)
    assert not found[3].isfinite().any()
    kept = [0, 1, 2, 4, 5]
    assert torch.equal(found[kept], good[kept])


def test_threads_change_no_bits() -> None:
    held = weights(4, 112, 64)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(4))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(run("plain", x, held))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
