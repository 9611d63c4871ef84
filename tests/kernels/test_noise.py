"""The hash is the engine's, bit for bit; noise is within the logarithms' rounding."""

from __future__ import annotations

import random

import torch
import triton
import triton.language as tl

from foredraft.engine.noise import _hash, noise_key
from foredraft.engine.noise import gumbel as engine_gumbel
from kernels import noise

BLOCK = 256


@triton.jit
def _noise(words, ids, keys, hashes, values, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    words += row * 4
    key = noise.noise_key(
        tl.load(words), tl.load(words + 1), tl.load(words + 2), tl.load(words + 3)
    )
    places = row * BLOCK + tl.arange(0, BLOCK)
    hashed = noise.noise_hash(key, tl.load(ids + places))
    tl.store(keys + row, key.to(tl.int32, bitcast=True))
    tl.store(hashes + places, hashed.to(tl.int32, bitcast=True))
    tl.store(values + places, noise.gumbel(hashed))


@triton.jit
def _gumbel(hashes, values, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    hashed = tl.load(hashes + places).to(tl.uint32, bitcast=True)
    tl.store(values + places, noise.gumbel(hashed))


def _signed(word: int) -> int:
    return (word & 0xFFFFFFFF) - (word >> 31 & 1) * 2**32


def test_the_hash_is_the_engines(device: torch.device) -> None:
    rng = random.Random(7)
    edges = [(0, 0, 0), (2**64 - 1, 7, 2**31 - 1), (2**32, 0, 1), (2**63, 1, 0)]
    rows = edges + [
        (rng.getrandbits(64), rng.randrange(64), rng.randrange(2**20)) for _ in range(28)
    ]
    words = [[_signed(s), _signed(s >> 32), c, p] for s, c, p in rows]
    ids = torch.randint(0, 2**18, (len(rows), BLOCK), generator=torch.Generator().manual_seed(3))
    ids[:, :2] = torch.tensor([0, 2**31 - 1])
    keys = torch.zeros(len(rows), dtype=torch.int32, device=device)
    hashes = torch.zeros(len(rows), BLOCK, dtype=torch.int32, device=device)
    values = torch.zeros(len(rows), BLOCK, device=device)
    _noise[(len(rows),)](
        torch.tensor(words, dtype=torch.int32, device=device),
        ids.to(torch.int32).to(device),
        keys,
        hashes,
        values,
        BLOCK=BLOCK,
        enable_fp_fusion=False,
    )
    for row, name in enumerate(rows):
        key = noise_key(*name)
        assert int(keys[row]) & 0xFFFFFFFF == key == noise.noise_key_reference(*name)
        wanted = _hash(ids[row], key)
        assert torch.equal(hashes[row].cpu().to(torch.int64) & 0xFFFFFFFF, wanted)
        assert torch.equal(noise.noise_hash_reference(key, ids[row]), wanted)


def test_noise_is_the_engines_but_for_the_last_place(device: torch.device) -> None:
    key = noise_key(11, 0, 5)
    hashes = _hash(torch.arange(4096), key)
    ends = torch.tensor([0, 1, 2**24, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1])
    reference = noise.gumbel_reference(hashes)
    assert torch.equal(reference, engine_gumbel(11, 0, 5, 4096, torch.device("cpu")))
    hashes = torch.cat([hashes[: 4096 - len(ends)], ends])
    values = torch.zeros(4096, device=device)
    words = torch.where(hashes >= 2**31, hashes - 2**32, hashes).to(torch.int32).to(device)
    _gumbel[(1,)](words, values, BLOCK=4096, enable_fp_fusion=False)
    wanted = noise.gumbel_reference(hashes)
    assert values.isfinite().all()
    # Near G = 0 the outer logarithm magnifies the inner one's last place.
    error = (values.cpu() - wanted).abs()
    assert bool((error <= 4e-7 * wanted.abs().clamp(min=1.0)).all())
