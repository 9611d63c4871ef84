"""Answers made beside each other are those that transformers makes one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import EOS, make_tiny_model
from transformers import AutoModelForCausalLM

from draft_service.training.answerer import Answerer, _kept
from draft_service.training.decoder import attend_within, group_mask
from draft_service.training.pair import Pair, load_pair

CPU = torch.device("cpu")
LENGTH = 160
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"hidden": 96, "heads": 6, "kv_heads": 2},
    "mistral": {"tie": False, "sliding_window": None, "head_dim": 24},
    "qwen2": {"hidden": 64, "heads": 4, "kv_heads": 1},
    "qwen3": {"norm_spread": 0.3, "head_dim": 24},
}
PROMPTS = [[5], [9, 8, 7, 6, 30, 31], [40, 41, 42], list(range(3, 123)), [5, 60, 61]]


def answerer(pair: Pair, rows: int, most: int, eos: tuple[int, ...] = (EOS,)) -> Answerer:
    return Answerer(pair.decoder, pair.head, eos, rows, LENGTH, most)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_equal_transformers(tmp_path: Path, family: str) -> None:
    """Prompts of five lengths in one batch, so all but one begin behind padding; two buckets."""
    directory = make_tiny_model(tmp_path, family, **FAMILIES[family])
    found = answerer(load_pair(directory, (0,), CPU, LENGTH), rows=6, most=16).answer(
        PROMPTS, [0.0] * len(PROMPTS), seed=0
    )
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    for prompt, ids in zip(PROMPTS, found, strict=True):
        given = torch.tensor([prompt])
        expected = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=16, do_sample=False
        )
        assert ids == expected[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = make_tiny_model(tmp_path_factory.mktemp("llama"), "llama", spread=0.1)
    return load_pair(directory, (0,), CPU, LENGTH)


def test_a_seed_repeats_its_answers_and_another_does_not(pair: Pair) -> None:
    maker, heats = answerer(pair, rows=5, most=20), [0.0, 0.7, 1.0, 1.0, 1.0]
    first = maker.answer(PROMPTS, heats, seed=1)
    other = maker.answer(PROMPTS, heats, seed=2)
    assert maker.answer(PROMPTS, heats, seed=1) == first
    assert other[0] == first[0]
    assert all(theirs != ours for theirs, ours in zip(other[1:], first[1:], strict=True))


def test_how_far_a_batch_is_is_told_before_its_end(pair: Pair) -> None:
    told: list[tuple[float, int]] = []
    rows = [[5], [9, 8], [7]]
    answerer(pair, 4, 40, eos=()).answer(
        rows, [0.0] * 3, 0, tell=lambda share, tokens: told.append((share, tokens))
    )
    assert told == [(step / 40, 3 * step) for step in range(1, 41)]


def test_samples_follow_the_target_at_their_temperature(pair: Pair) -> None:
    rows, prompt, heat = 1000, [9, 8, 7], 0.7
    found = answerer(pair, rows, 1).answer([prompt] * rows, [heat] * rows, seed=3)
    counts = torch.bincount(torch.tensor(found).flatten(), minlength=len(pair.head))
    visible = torch.ones(1, len(prompt), len(prompt), dtype=torch.bool).tril()
    mask = group_mask(visible, pair.shape.group, torch.float32)
    positions = torch.arange(len(prompt))[None]
    hidden = pair.decoder(torch.tensor([prompt]), positions, attend_within(mask))
    logits = hidden[0, -1] @ pair.head.T
    far = {t: (counts / rows - (logits / t).softmax(-1)).abs().sum() / 2 for t in (0.5, heat, 1.0)}
    assert (logits / heat).softmax(dim=-1).max() < 0.5
    assert far[heat] < 0.13
    assert far[heat] < min(far[0.5], far[1.0])


def test_an_answer_ends_with_its_eos_and_no_prompt_is_changed(pair: Pair) -> None:
    [whole] = answerer(pair, 1, 30, eos=()).answer([[9, 8]], [0.0], seed=0)
    assert len(whole) == 30
    end = whole[12]
    place = whole.index(end)
    found = answerer(pair, 2, 30, eos=(end,)).answer([[9, 8], [9, 8]], [0.0, 0.0], seed=0)
    assert found == [whole[: place + 1]] * 2


def test_answers_that_go_on_are_not_changed_by_those_that_end(pair: Pair) -> None:
    """Most of the rows end soon, so that the others are moved together, twice."""
    prompts = [[first, second] for first in (5, 9, 40) for second in range(60, 68)]
    rows, nothing = len(prompts), [0.0] * len(prompts)
    whole = answerer(pair, rows, 80, eos=()).answer(prompts, nothing, seed=0)
    eos: list[int] = []
    while sum(bool({*eos} & {*ids[:14]}) for ids in whole) < 3 * rows // 4:
        eos.append(next(ids[12] for ids in whole if not {*eos} & {*ids[:14]}))
    expected = [
        ids[: next((place + 1 for place, token in enumerate(ids) if token in eos), len(ids))]
        for ids in whole
    ]
    lengths = sorted(map(len, expected))
    assert lengths[3 * rows // 4 - 1] <= 16 and lengths[-3] > 32
    assert answerer(pair, rows, 80, tuple(eos)).answer(prompts, nothing, seed=0) == expected


def test_a_prompt_and_its_answer_fit_in_a_window_whatever_stands_beside_them(pair: Pair) -> None:
    """A long prompt leaves little room for its own answer, and takes none from others'."""
    long, short = list(range(3, 103)), [9, 8]
    found = answerer(pair, 2, 100, eos=()).answer([long, short], [0.0, 0.0], seed=0)
    assert [len(ids) for ids in found] == [LENGTH - len(long), 100]
    assert found[1:] == answerer(pair, 1, 100, eos=()).answer([short], [0.0], seed=0)


def test_what_graphs_read_and_write_stays_where_it_is(pair: Pair) -> None:
    """Two batches, rows that end, prompts of several widths: all of it in the same memory."""
    maker = answerer(pair, 16, 60, eos=tuple(range(3, 40)))
    held = {name: item for name, item in vars(maker._steps).items() if torch.is_tensor(item)}
    assert len(held) == 6
    places = {name: tensor.data_ptr() for name, tensor in held.items()}
    for width in (3, 90):
        prompts = [[number] * width for number in range(40, 56)]
        found = maker.answer(prompts, [0.0, 1.0] * 8, seed=width)
        assert min(map(len, found)) < 16 < max(map(len, found))
        for name, tensor in held.items():
            assert getattr(maker._steps, name) is tensor and tensor.data_ptr() == places[name]


def test_rows_that_live_stay_where_they_can() -> None:
    ended = np.array([False, True, True, False, True, False, True, False])
    assert _kept(ended, 5).tolist() == [0, 5, 7, 3, 4]
    assert _kept(ended, 4).tolist() == [0, 5, 7, 3]
