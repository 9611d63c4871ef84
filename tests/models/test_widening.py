"""Which shapes a source fits in, and what they hold: nothing is built."""

from __future__ import annotations

import pytest

from foredraft.engine.model_config import ModelConfig
from foredraft.models.widen.shape import SHAPES, Shape
from foredraft.models.widen.wide_directory import count_parameters, plan_files
from foredraft.models.widen.widening import plan_widening
from foredraft.params import InvalidField

SMOLLM2 = ModelConfig(
    layers=30,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_rows=49_152,
    context_length=8192,
    sliding_window=None,
    rms_eps=1e-5,
    rope_theta=100_000.0,
    rope_scaling=None,
    tied=True,
    qkv_bias=False,
    head_norms=False,
    eos_token_ids=(2,),
)


@pytest.mark.parametrize(
    ("shape", "published"), [("llama-8b", 8_030_261_248), ("llama-70b", 70_553_706_496)]
)
def test_known_shapes_have_the_published_numbers_of_parameters(shape: str, published: int) -> None:
    """But for embedding and head, which have the source's vocabulary."""
    widening = plan_widening(SMOLLM2, SHAPES[shape])
    fewer = 2 * (128_256 - 49_152) * widening.target.hidden
    assert count_parameters(widening) == published - fewer


def test_seventy_billion_parameters_are_written_in_pieces() -> None:
    files = plan_files(plan_widening(SMOLLM2, SHAPES["llama-70b"]), 2**31, itemsize=2)
    assert len(files) > 60  # of 140 GB
    names = [name for file in files for name in file]
    assert len(names) == len(set(names)) == 80 * 9 + 3


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Shape(layers=28), "layers at least 30, not 28"),
        (Shape(hidden=512, heads=16, kv_heads=4), "hidden at least 576, not 512"),
        (Shape(intermediate=1024), "intermediate at least 1536, not 1024"),
        (Shape(hidden=1024, heads=16, kv_heads=2), "kv_heads at least 3, not 2"),
        (Shape(hidden=1024, heads=16, kv_heads=8), "heads at least 24, 3 for each KV head, not 16"),
        (Shape(hidden=1020, heads=15, kv_heads=4), "heads a multiple of kv_heads (4), not 15"),
        (Shape(hidden=1000, heads=16, kv_heads=4), "hidden a multiple of heads (16), not 1000"),
        (Shape(head_dim=96), "head_dim 64 or 128, not 96"),
        (Shape(head_dim=32), "head_dim 64 or 128, not 32"),
        (Shape(layers=1, head_dim=256), "layers at least 30, not 1, head_dim 64 or 128, not 256"),
    ],
    ids=[
        "layers",
        "hidden",
        "intermediate",
        "kv-heads",
        "heads",
        "group",
        "heads-of-hidden",
        "head-96",
        "head-32",
        "two",
    ],
)
def test_shapes_without_room_are_refused(shape: Shape, text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        plan_widening(SMOLLM2, shape)
    assert str(caught.value) == f"--shape must be one that has room for the source: {text}"
