from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from foredraft.engine.rotary import rotate_
from kernels.kv_layout import KVLayer, KVPool, dequantize
from kernels.rope_kv_write import HeadNorms, rope_kv_write, rope_kv_write_reference

_POSITIONS = 100
_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class _Rows:
    qkv: Tensor
    position: Tensor
    place: Tensor


def _rows(count: int, columns: int) -> _Rows:
    """Rows at odd places; the last one is padding."""
    random = torch.Generator().manual_seed(count + columns)
    place = torch.randperm(_BLOCKS * 16, generator=random)[:count].int()
    place[-1] = -1
    return _Rows(
        torch.randn(count, columns, generator=random).bfloat16(),
        torch.randint(_POSITIONS, (count,), generator=random).int(),
        place,
    )


def _turns(head_dim: int) -> Tensor:
    frequency = 1e4 ** (torch.arange(0, head_dim, 2) / -head_dim)
    angle = torch.arange(_POSITIONS)[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


def _written(
    rows: _Rows, heads: int, kv_heads: int, head_dim: int, device: torch.device
) -> tuple[Tensor, KVLayer]:
    layer = KVPool.empty(1, kv_heads, _BLOCKS, head_dim, device).layer(0)
    q = torch.zeros(len(rows.qkv), heads, head_dim, dtype=torch.bfloat16, device=device)
    at = rows.position.to(device), rows.place.to(device)
    rope_kv_write(rows.qkv.to(device), _turns(head_dim).to(device), *at, layer, q)
    return q, layer


def _entries(layer: KVLayer, place: int) -> Tensor:
    """Codes and exponents at a place, as bytes: [2, kv_heads, head_dim + 1]."""
    codes = layer.codes.view(torch.uint8).flatten(2, 3)[:, :, place]
    exponents = layer.exponents.view(torch.uint8).flatten(2, 3)[:, :, place]
    return torch.cat((codes, exponents[..., None]), dim=-1)


def _values(vectors: Tensor, device: torch.device) -> tuple[Tensor, KVLayer]:
    """What is read back of values [rows, head_dim] of one KV head, at places 0, 1, .."""
    count, head_dim = vectors.shape
    qkv = torch.zeros(count, 3, head_dim)
    qkv[:, 2] = vectors
    place = torch.arange(count, dtype=torch.int32)
    rows = _Rows(qkv.flatten(1).bfloat16(), torch.zeros_like(place), place)
    _, layer = _written(rows, 1, 1, head_dim, device)
    return dequantize(layer.codes, layer.exponents)[1, 0].flatten(0, 1)[:count].cpu(), layer


def _relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "few_rows"),
    [(3, 1, 64, 4), (2, 2, 80, 4), (7, 1, 128, 4), (4, 2, 80, 3), (3, 1, 64, 3)],
    ids=str,
)
def test_every_byte_is_the_references(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    few_rows: int,
):
    """Of many rows, too, which have several heads in a program where these come in pairs."""
    monkeypatch.setattr("kernels.rope_kv_write._FEW_ROWS", few_rows)
    rows = _rows(4, (heads + 2 * kv_heads) * head_dim)
    q, layer = _written(rows, heads, kv_heads, head_dim, device)
    expected = KVPool.empty(1, kv_heads, _BLOCKS, head_dim, torch.device("cpu")).layer(0)
    expected_q = torch.zeros(q.shape, dtype=torch.bfloat16)
    rope_kv_write_reference(
        rows.qkv, _turns(head_dim), rows.position, rows.place, expected, expected_q
    )
    assert torch.equal(q.cpu(), expected_q)
    assert torch.equal(layer.codes.cpu().view(torch.uint8), expected.codes.view(torch.uint8))
    assert torch.equal(layer.exponents.cpu(), expected.exponents)
    assert (q[-1] == 0).all()  # padding is not written


def test_pairs_turn_as_the_engine_turns_them(device: torch.device):
    rows = _rows(3, 3 * 64)
    q, layer = _written(rows, 1, 1, 64, device)
    turned = rows.qkv.float().view(3, 3, 64)[:2, :2].contiguous()
    rotate_(turned, torch.view_as_complex(_turns(64))[rows.position[:2].long()][:, None])
    assert ((q[:2].float().cpu() - turned[:, :1]).abs() <= turned[:, :1].abs() * 2**-8 + 1e-6).all()
    keys = dequantize(layer.codes, layer.exponents)[0, 0].flatten(0, 1).cpu()
    error = (keys[rows.place[:2].long()] - turned[:, 1]).abs()
    largest = turned[:, 1].abs().amax(dim=-1, keepdim=True)
    assert (error <= torch.maximum(turned[:, 1].abs() * 2**-4, largest * 2**-16)).all()


def test_heads_are_normed_before_they_turn(device: torch.device):
    rows = _rows(2, 4 * 48)
    random = torch.Generator().manual_seed(6)
    norms = HeadNorms(torch.rand(3, 48, generator=random) + 0.5, eps=1e-2)
    shapes = KVPool.empty(1, 1, _BLOCKS, 48, device), KVPool.empty(1, 1, _BLOCKS, 48, device)
    q = torch.zeros(2, 2, 2, 48, dtype=torch.bfloat16, device=device)
    inputs = [x.to(device) for x in (rows.qkv, _turns(48), rows.position, rows.place)]
    on_device = HeadNorms(norms.weights.to(device), norms.eps)
    rope_kv_write(*inputs, shapes[0].layer(0), q[0], on_device)
    rope_kv_write_reference(*inputs, shapes[1].layer(0), q[1], on_device)
    assert ((q[0, 0] - q[1, 0]).abs() <= q[1, 0].abs() * 2**-7).all()
    ours, theirs = (dequantize(x.layer(0).codes, x.layer(0).exponents) for x in shapes)
    assert _relative_error(ours, theirs) < 1e-2  # sums in another order may round a code elsewhere
    assert _relative_error(q[0, 0].cpu(), _normed_by_hand(rows, norms)) < 2**-8


def _normed_by_hand(rows: _Rows, norms: HeadNorms) -> Tensor:
    x = rows.qkv[0].double().view(4, 48)[:2]
    x = x / (x.square().mean(dim=-1, keepdim=True) + norms.eps).sqrt() * norms.weights[:2]
    turns = torch.view_as_complex(_turns(48).double())[rows.position[0].long()]
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def test_an_entry_depends_on_no_other_token(device: torch.device):
    rows = _rows(5, 5 * 64)
    _, among = _written(rows, 3, 1, 64, device)
    louder = _Rows(rows.qkv * 20, rows.position, rows.place)
    louder.qkv[1] = rows.qkv[1]
    _, beside = _written(louder, 3, 1, 64, device)
    alone = _Rows(rows.qkv[1:2], rows.position[1:2], torch.tensor([7], dtype=torch.int32))
    _, single = _written(alone, 3, 1, 64, device)
    place = int(rows.place[1])
    assert torch.equal(_entries(among, place), _entries(beside, place))
    assert torch.equal(_entries(among, place), _entries(single, 7))
    loud = dequantize(beside.codes, beside.exponents)[1].flatten(1, 2)[0, int(rows.place[0])]
    assert _relative_error(loud.cpu(), louder.qkv[0, -64:]) < 0.04  # nothing saturates


def test_any_size_reads_back(device: torch.device):
    random = torch.Generator().manual_seed(1)
    vectors = torch.randn(6, 64, generator=random)
    vectors[1] *= 1e-3
    vectors[2, 5] = 330.0
    vectors[3] *= 1e-30
    vectors[4] *= 1e37
    vectors[5] = 0
    vectors = vectors.bfloat16()
    back, _ = _values(vectors, device)
    assert (back[5] == 0).all()
    for row in range(5):
        assert _relative_error(back[row], vectors[row]) < 0.04


def test_the_exponent_is_the_smallest_that_holds_the_largest(device: torch.device):
    vectors = torch.zeros(4, 16)
    vectors[:, 3] = torch.tensor([448.0, 450.0, -448.0 * 2**-20, 2.0**-121])
    back, layer = _values(vectors, device)
    assert layer.exponents[1, 0, 0, :4].tolist() == [0, 1, -20, -120]
    assert back[:, 3].tolist() == [448.0, 448.0, -448.0 * 2**-20, 2.0**-121]


def test_what_is_not_finite_is_read_as_nan_and_harms_no_other_vector(device: torch.device):
    vectors = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    whole, _ = _values(vectors, device)
    broken = vectors.clone()
    broken[1, 4], broken[1, 9] = float("nan"), float("-inf")
    back, _ = _values(broken, device)
    assert back[1].isnan().nonzero().flatten().tolist() == [4, 9]
    assert torch.equal(back[[0, 2]], whole[[0, 2]])


def test_no_rows_are_no_work(device: torch.device):
    _, layer = _written(
        _Rows(torch.empty(0, 192).bfloat16(), *torch.empty(2, 0).int()), 1, 1, 64, device
    )
    assert (layer.codes.view(torch.uint8) == 0).all()


def test_what_does_not_fit_is_named():
    rows = _rows(2, 3 * 64)
    layer = KVPool.empty(1, 1, _BLOCKS, 64, torch.device("cpu")).layer(0)
    q = torch.zeros(2, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"position must be contiguous torch.int32 \[2\]"):
        rope_kv_write(rows.qkv, _turns(64), rows.position[:1], rows.place, layer, q)
    with pytest.raises(ValueError, match=r"qkv must be contiguous torch.bfloat16"):
        rope_kv_write(rows.qkv.float(), _turns(64), rows.position, rows.place, layer, q)
    with pytest.raises(ValueError, match="head_dim must be a multiple of 16 up to 256, not 72"):
        KVPool.empty(1, 1, _BLOCKS, 72, torch.device("cpu"))
