"""The benchmark's cases at tiny shapes: they launch, and what they check holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from bench.kernels.case import OURS, Prepared
from bench.kernels.cases import (
    draft_kernels,
    fp8_gemm,
    lm_head,
    prompt_attention,
    row_kernels,
    skinny_gemm,
)
from bench.kernels.shapes import Shape
from kernels.skinny_table import BF16, FP8, W8A16

_SHAPE = Shape("tiny", "layer", 8, 32)


@pytest.mark.parametrize(
    "prepare",
    [
        partial(skinny_gemm.prepare, FP8, _SHAPE, 2),
        pytest.param(partial(skinny_gemm.prepare, W8A16, _SHAPE, 2), marks=pytest.mark.slow),
        pytest.param(partial(skinny_gemm.prepare, BF16, _SHAPE, 2), marks=pytest.mark.slow),
        partial(lm_head.prepare, W8A16, _SHAPE, 2),
        pytest.param(partial(lm_head.prepare, BF16, _SHAPE, 2), marks=pytest.mark.slow),
        partial(fp8_gemm.prepare, _SHAPE, 17),
        partial(prompt_attention.prepare, (4, 2, 16), 64, 64),
        partial(row_kernels.prepare_norm, 48, 3),
        partial(row_kernels.prepare_silu, 48, 3),
        partial(row_kernels.prepare_rows, 48, 3),
        partial(row_kernels.prepare_weight, 4, 48),
        partial(draft_kernels.prepare_attention, (4, 2, 16), 2, 130),
        partial(draft_kernels.prepare_guesses, 2, 60, 0.0),
        partial(draft_kernels.prepare_guesses, 2, 60, 1.0),
    ],
    ids=[
        "fp8",
        "w8a16",
        "bf16",
        "head w8a16",
        "head bf16",
        "many",
        "prompt",
        "norm",
        "silu",
        "rows",
        "weight",
        "draft attention",
        "guesses",
        "noisy guesses",
    ],
)
def test_what_is_checked_holds(device: torch.device, prepare: Callable[[torch.device], Prepared]):
    prepared = prepare(device)
    findings = prepared.check()
    assert findings and all(found is not False for found in findings.values())
    prepared.contestants[OURS](prepared.copies - 1)
