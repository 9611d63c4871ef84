"""Layers of small drafts in int8."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from support.draft_logits import load_own_draft
from support.tiny_models import make_tiny_llama

from draft_service.engine.draft_engine import Extension
from draft_service.engine.int8 import Int8Linear, has_int8
from foredraft.engine.linear import HalfLinear, has_half_linear

pytestmark = pytest.mark.skipif(
    not (has_half_linear() and has_int8()), reason="the library has no such product"
)


def random_rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]))


def test_no_row_is_lost_beside_a_large_one() -> None:
    """Under one scale for all, rows a thousand times smaller would be 0."""
    weight = random_rows(40, 64)
    x = random_rows(5, 64) * torch.tensor([1.0, 1e-3, 1e3, 0.0, 1.0])[:, None]
    linear = Int8Linear(weight)
    for found in (linear(x.clone()), torch.cat([linear(row[None].clone()) for row in x])):
        exact = x @ weight.T
        wrong = (found - exact).norm(dim=-1)
        assert (wrong <= 0.03 * exact.norm(dim=-1)).all()


def test_a_row_that_is_no_number_is_alone() -> None:
    linear, x = Int8Linear(random_rows(40, 64)), random_rows(3, 64)
    whole = linear(x.clone())
    x[1, 5] = torch.nan
    found = linear(x.clone())
    assert found[[0, 2]].equal(whole[[0, 2]])
    assert linear(torch.full((1, 64), torch.nan)).isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "layers", "name"),
    [("auto", 2, "int8"), ("float16", 2, "float16"), ("auto", 9, "float16")],
    ids=["auto", "float16", "deep"],
)
def test_small_drafts_have_it_unless_told_otherwise(
    tmp_path: Path, dtype: str, layers: int, name: str
) -> None:
    engine = load_own_draft(make_tiny_llama(tmp_path, layers=layers), device="cpu", dtype=dtype)
    assert engine.info.dtype == name
    linear = engine._forward._model.layers[0].qkv
    assert isinstance(linear, Int8Linear if name == "int8" else HalfLinear)


def test_guesses_stay_nearly_the_same(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path, vocab=300)
    tokens = random.Random(0).choices(range(3, 300), k=64)
    found = []
    for dtype in ("float32", "auto"):
        engine = load_own_draft(directory, device="cpu", dtype=dtype)
        extension = Extension(range(1, 5), 0, tokens, [], [], [None] * 64)
        found.append([row[0] for row in engine.extend([extension]).tokens])
    assert sum(a == b for a, b in zip(*found, strict=True)) >= 45
