"""A reduced output vocabulary: the same numbers, fewer of them; bad files are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.draft_logits import draft_logits, known_ids, load_own_draft
from support.reduced import FILE, reduced_twin, write_vocabulary
from support.tiny_models import make_tiny_llama, make_tiny_model

from draft_service.engine.lean import LeanEngine
from foredraft.engine.linear import has_half_linear
from foredraft.engine.model_config import UnsupportedModel, check_whole
from foredraft.engine.noise import gumbel, gumbel_of
from foredraft.engine.output_ids import OutputIds
from foredraft.engine.sampling import SampledRow, most_likely, perturbed_scores
from foredraft.params import SamplingParams

IDS = [0, 2, 3, *range(5, 90, 3), 127]


def load(directory: Path, dtype: str = "auto") -> LeanEngine:
    return load_own_draft(directory, device="cpu", dtype=dtype)


def logits_of(engine: LeanEngine, rows: int) -> torch.Tensor:
    return draft_logits(engine, [(7 * n + 3) % 120 for n in range(rows)])


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
def test_reduced_logits_are_the_full_ones_at_those_ids(tmp_path, dtype, tie) -> None:
    full = make_tiny_llama(tmp_path / "full", hidden=96, tie=tie, norm_spread=0.2)
    whole, reduced = load(full, dtype), load(reduced_twin(full, tmp_path / "few", IDS), dtype)
    assert known_ids(whole) == list(range(128))
    assert known_ids(reduced) == IDS
    for rows in (1, 2, 5, 16):
        expected, found = logits_of(whole, rows)[:, IDS], logits_of(reduced, rows)
        assert found.shape == (rows, len(IDS))
        if dtype == "auto" and has_half_linear():
            assert torch.equal(found, expected)
        else:  # the library may choose another kernel for another width of the result
            torch.testing.assert_close(found, expected)
            assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_rows_of_padding_are_left_out(tmp_path) -> None:
    padded = make_tiny_llama(tmp_path / "padded", vocab=128, real_vocab=100)
    engine = load(write_vocabulary(padded, [1, 98, 99, 100, 127]))
    assert known_ids(engine) == [1, 98, 99]
    assert logits_of(engine, 2).shape == (2, 3)


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"ids": torch.tensor([3, 2], dtype=torch.int32)}, "ids must ascend, each id once"),
        ({"ids": torch.tensor([3, 3], dtype=torch.int32)}, "ids must ascend, each id once"),
        ({"ids": torch.tensor([-1, 3], dtype=torch.int32)}, "from 0 to 127, .*, not -1"),
        ({"ids": torch.tensor([3, 128], dtype=torch.int32)}, "from 0 to 127, .*, not 128"),
        ({"ids": torch.tensor([120, 121], dtype=torch.int32)}, "an id below 100"),
        ({"ids": torch.tensor([3])}, r"must be int32 \[n\], n at least 1, not int64 \[1\]"),
        ({"ids": torch.tensor([[3]], dtype=torch.int32)}, r"not int32 \[1, 1\]"),
        ({"ids": torch.tensor([], dtype=torch.int32)}, r"not int32 \[0\]"),
        ({"tokens": torch.tensor([3], dtype=torch.int32)}, r"one tensor named ids, not \['tokens"),
        ({"ids": torch.tensor([3], dtype=torch.int32), "x": torch.ones(1)}, "one tensor named ids"),
        ({}, "one tensor named ids, not none"),
        (None, "is not a safetensors file"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, tensors, text) -> None:
    directory = make_tiny_llama(tmp_path, real_vocab=100)
    if tensors is None:
        (directory / FILE).write_bytes(b"{}")
    else:
        save_file(tensors, directory / FILE)
    with pytest.raises(UnsupportedModel, match=f"^{FILE}.*{text}"):
        load(directory)


def test_a_target_must_be_whole(tmp_path) -> None:
    directory = make_tiny_model(tmp_path / "few", "llama")
    check_whole(directory)
    with pytest.raises(UnsupportedModel, match=f"^few has a {FILE}: it can be a draft but no tar"):
        check_whole(write_vocabulary(directory, IDS))


def test_noise_of_some_ids_is_that_of_all() -> None:
    ids = torch.tensor([0, 5, 77, 776])
    for key in ((0, 0, 0), (2**64 - 1, 3, 9)):
        assert torch.equal(gumbel_of(*key, ids), gumbel(*key, 777, torch.device("cpu"))[ids])


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    temperature=st.sampled_from([0.0, 0.7]),
    bias=st.dictionaries(st.integers(0, 80), st.floats(-1000, 1000), max_size=30),
    stops=st.lists(st.integers(0, 80), max_size=9).map(tuple),
    repetition=st.sampled_from([1.0, 1.3]),
    frequency=st.sampled_from([0.0, 0.3]),
    min_tokens=st.integers(0, 12),
)
def test_every_id_has_the_score_that_it_has_among_all(
    data, temperature, bias, stops, repetition, frequency, min_tokens
) -> None:
    """Penalties, bias, ends and noise, bit for bit, whichever ids are there."""
    params = SamplingParams(
        temperature=temperature,
        seed=3,
        logit_bias=bias,
        stop_token_ids=stops,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        min_tokens=min_tokens,
    )
    history = data.draw(st.lists(st.integers(0, 63), min_size=4, max_size=30).map(tuple))
    ids = torch.tensor(sorted(data.draw(st.sets(st.integers(0, 63), min_size=1))))
    logits = torch.randn(64, generator=torch.Generator().manual_seed(len(history))) * 10
    row = SampledRow(params, 0, len(history), 4, history)
    whole = perturbed_scores(logits, row, (7, 70))
    few = perturbed_scores(logits[ids], row, (7, 70), OutputIds(ids))
    assert torch.equal(few, whole[ids])


def test_filters_see_what_is_there() -> None:
    logits = torch.tensor([9.0, 5.0, 4.0, 3.0, -9.0])
    row = SampledRow(SamplingParams(temperature=1.0, top_k=2), 0, 5, 2, ())
    scores = perturbed_scores(logits[1:], row, (), OutputIds(torch.tensor([1, 2, 3, 4])))
    assert scores.isfinite().tolist() == [True, True, False, False]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 40), st.integers(1, 4))
def test_the_most_likely_are_those_of_a_stable_sort(data, rows, width, count) -> None:
    """Ties included: the lowest place goes first."""
    numbers = st.lists(st.integers(-4, 4), min_size=width, max_size=width)
    scores = torch.tensor(data.draw(st.lists(numbers, min_size=rows, max_size=rows))).float()
    order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    expected = scores.softmax(-1).gather(-1, order)
    places, shares = most_likely(scores.clone(), count)
    assert torch.equal(places, order)
    torch.testing.assert_close(shares, expected)


def test_scores_that_are_no_numbers_have_no_share() -> None:
    """A drafter takes only what has a share above 0."""
    for worst in (torch.nan, torch.inf):
        _, shares = most_likely(torch.tensor([[1.0, worst, 2.0]]), 2)
        assert not (shares > 0).any()
    _, shares = most_likely(torch.full((1, 3), -torch.inf), 2)
    assert not (shares > 0).any()
