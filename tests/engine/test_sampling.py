"""Coupled sampling: distributions, edges, and independence from everything else in the step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foredraft.engine.noise import _hash, _hash_on_cpu, _spread_ids, gumbel, noise_key
from foredraft.engine.sampling import (
    SampledRow,
    choose,
    lowest_argmax,
    perturbed_scores,
    token_logprobs,
)
from foredraft.params import SamplingParams

CPU = torch.device("cpu")


def row(position: int = 5, history: tuple[int, ...] = (), **options: object) -> SampledRow:
    return SampledRow(SamplingParams(**options), 0, position, 2, history)


def frequencies(logits: Tensor, draws: int, **options: object) -> Tensor:
    """Shares of each token over ``draws`` positions."""
    params = SamplingParams(temperature=1.0, **options)
    rows = [SampledRow(params, 0, position, 0, ()) for position in range(draws)]
    chosen = choose(logits.expand(draws, -1), rows, ())
    return torch.bincount(torch.tensor(chosen), minlength=logits.shape[-1]) / draws


@pytest.mark.parametrize(
    "seed, choice, position, vocab", [(0, 0, 0, 1), (2**64 - 1, 3, 9, 49_152), (7, 0, 5, 777)]
)
def test_noise_is_the_same_in_words_and_in_64_bits(seed, choice, position, vocab):
    key = noise_key(seed, choice, position)
    words = _hash_on_cpu(_spread_ids(vocab), key).astype("int64").tolist()
    assert words == _hash(torch.arange(vocab), key).tolist()


def test_samples_follow_the_softmax() -> None:
    """What the noise chooses is distributed as the target says."""
    p = torch.tensor([0.4, 0.4, 0.2])
    assert torch.allclose(frequencies(p.log(), 8_000), p, atol=0.02)


def test_filters_cut_before_the_draw() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    kept = p[:2] / p[:2].sum()
    for options in ({"top_k": 2}, {"top_p": 0.75}, {"min_p": 0.5}):
        shares = frequencies(p.log(), 4_000, **options)
        assert torch.allclose(shares[:2], kept, atol=0.03), options
        assert shares[2:].sum() == 0, options


def test_shared_noise_couples_draft_and_target() -> None:
    """p=(.6,.3,.1), q=(.2,.5,.3) agree 0.578 of the time; independent draws would 0.30."""
    p, q = torch.tensor([0.6, 0.3, 0.1]).log(), torch.tensor([0.2, 0.5, 0.3]).log()
    noise = gumbel(3, 0, 0, 600_000, CPU).view(-1, 3)
    agree = (lowest_argmax(p + noise) == lowest_argmax(q + noise)).float().mean()
    assert agree.item() == pytest.approx(0.578, abs=0.005)


def test_drawn_tokens_stay_the_targets_when_the_drafter_proposes_another_distribution() -> None:
    """Accepted or not, the first token's law is p."""
    p, q = torch.tensor([0.4, 0.4, 0.2]).log(), torch.tensor([0.5, 0.3, 0.2]).log() / 0.5
    noise = gumbel(11, 0, 0, 600_000, CPU).view(-1, 3)
    target, draft = lowest_argmax(p + noise), lowest_argmax(q + noise)
    committed = torch.where(target == draft, draft, target)
    shares = torch.bincount(committed, minlength=3) / len(committed)
    assert torch.allclose(shares, p.exp(), atol=0.005)


def test_noise_is_a_function_of_its_key() -> None:
    one = gumbel(1, 0, 7, 1000, CPU)
    assert torch.equal(one, gumbel(1, 0, 7, 1000, CPU))
    others = [gumbel(2, 0, 7, 1000, CPU), gumbel(1, 1, 7, 1000, CPU), gumbel(1, 0, 8, 1000, CPU)]
    others.append(gumbel(1 + 2**32, 0, 7, 1000, CPU))
    assert all((one - other).abs().max() > 1 for other in others)


def test_noise_has_gumbels_moments_and_can_always_win() -> None:
    noise = torch.cat([gumbel(5, 0, position, 50_000, CPU) for position in range(20)])
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.005)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)


def test_the_only_token_left_wins_whatever_its_noise() -> None:
    """The hash of this id is among the 128 that would round to 1."""
    assert gumbel(2, 0, 0, 200_000, CPU).isfinite().all()
    worst = int(gumbel(2, 0, 0, 200_000, CPU).argmin())
    logits = torch.zeros(200_000)
    logits[worst] = 5.0
    only = SampledRow(SamplingParams(temperature=1.0, seed=2, top_k=1), 0, 0, 0, ())
    assert choose(logits[None], [only], ()) == [worst]


def test_noise_of_different_seeds_is_independent() -> None:
    first, second = gumbel(1, 0, 0, 200_000, CPU), gumbel(2, 0, 0, 200_000, CPU)
    assert torch.corrcoef(torch.stack((first, second)))[0, 1].abs() < 0.01


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(1)) * 50
    rows = [row(position, temperature=temperature) for position in range(20)]
    assert choose(logits, rows, ()) == logits.argmax(-1).tolist()


def test_huge_top_k_is_off_and_tiny_top_p_is_greedy() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(2))
    positions = range(50)
    plain = choose(logits, [row(p, temperature=1.0) for p in positions], ())
    huge = choose(logits, [row(p, temperature=1.0, top_k=10_000_000) for p in positions], ())
    nucleus = choose(logits, [row(p, temperature=1.0, top_p=1e-6) for p in positions], ())
    assert huge == plain
    assert nucleus == logits.argmax(-1).tolist()
    assert plain != nucleus


def test_ties_go_to_the_lowest_id() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, 0.0, 0.0]])
    assert lowest_argmax(scores).tolist() == [1, 0]
    odd = torch.tensor([[torch.nan, 1.0], [torch.nan, torch.nan], [-torch.inf, torch.inf]])
    assert lowest_argmax(odd).tolist() == [1, 0, 1]


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("vocab", [50, 5000])
def test_nucleus_is_the_smallest_set_with_the_mass(top_p: float, vocab: int) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab))
    scores = perturbed_scores(logits, row(temperature=1.0, top_p=top_p), ())
    kept = scores.isfinite()
    probabilities = logits.softmax(-1)
    assert probabilities[kept].sum() >= top_p - 1e-5
    assert probabilities[kept].sum() - probabilities[kept].min() < top_p + 1e-5
    assert (probabilities[~kept] <= probabilities[kept].min()).all()


def test_penalties_follow_the_history() -> None:
    """Repetition over everything, presence and frequency over the output (after 2 ids)."""
    logits = torch.tensor([2.0, -2.0, 1.0, 1.0, 1.0])
    history = (0, 1, 2, 3, 3)
    scores = perturbed_scores(logits, row(5, history, repetition_penalty=2.0), ())
    assert scores.tolist() == [1.0, -4.0, 0.5, 0.5, 1.0]
    scores = perturbed_scores(
        logits, row(5, history, presence_penalty=0.5, frequency_penalty=0.25), ()
    )
    assert scores.tolist() == [2.0, -2.0, 0.25, 0.0, 1.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 1.0, 1.0]


def test_bias_and_min_tokens() -> None:
    logits = torch.tensor([1.0, 5.0, 3.0])
    assert choose(logits[None], [row(logit_bias={1: -100.0})], ()) == [2]
    assert choose(logits[None], [row(2, min_tokens=1)], (1,)) == [2]
    assert choose(logits[None], [row(3, min_tokens=1)], (1,)) == [1]
    assert choose(logits[None], [row(2, min_tokens=1, stop_token_ids=(2,))], (1,)) == [0]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(3))
    entry = token_logprobs(logits, 7, 3)
    expected = logits.log_softmax(-1)
    assert entry.chosen == pytest.approx(expected[7].item())
    assert entry.top_ids == tuple(expected.topk(3).indices.tolist())
    assert len(token_logprobs(logits, 7, 0).top_ids) == 0
    tied = token_logprobs(torch.tensor([0.0, 2.0, 3.0, 2.0, 3.0, 2.0]), 2, 3)
    assert tied.top_ids == (2, 4, 1)


def adjusted_one_by_one(logits: Tensor, row: SampledRow, eos: tuple[int, ...]) -> Tensor:
    """Penalties, bias and min_tokens as the design says them, one token after another."""
    params, scores = row.params, logits.clone()
    for token in set(row.history) if params.penalized else ():
        value = scores[token].clone()
        penalty = params.repetition_penalty
        scores[token] = value / penalty if value > 0 else value * penalty
    output = row.history[row.prompt_length :] if params.penalized else ()
    for token in set(output):
        count = torch.tensor(output.count(token))
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    for token, bias in params.logit_bias.items():
        if token < len(scores):
            scores[token] += bias
    if row.position - row.prompt_length < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else eos)):
            if token < len(scores):
                scores[token] = -torch.inf
    return scores


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    bias=st.dictionaries(st.integers(0, 80), st.floats(-1000, 1000), max_size=60),
    stops=st.lists(st.integers(0, 80), max_size=9).map(tuple),
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    frequency=st.sampled_from([0.0, 0.3, -1.1]),
    presence=st.sampled_from([0.0, 0.7, -0.1]),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 12),
)
def test_adjusted_logits_have_the_bits_of_a_loop_over_tokens(
    data: st.DataObject,
    bias: dict[int, float],
    stops: tuple[int, ...],
    repetition: float,
    frequency: float,
    presence: float,
    ignore_eos: bool,
    min_tokens: int,
) -> None:
    """Ids beyond the vocabulary (64 here) are left out; a draft may have fewer than the target."""
    params = SamplingParams(
        logit_bias=bias,
        stop_token_ids=stops,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
    )
    history = data.draw(st.lists(st.integers(0, 63), min_size=4, max_size=30).map(tuple))
    seed = data.draw(st.integers(0, 1000))
    logits = torch.randn(64, generator=torch.Generator().manual_seed(seed)) * 10
    before = logits.clone()
    for eos in ((7,), (7, 70)):
        one = SampledRow(params, 0, len(history), 4, history)
        scores = perturbed_scores(logits, one, eos)
        assert torch.equal(scores, adjusted_one_by_one(logits, one, eos))
    assert torch.equal(logits, before)


def test_a_bias_is_read_once_for_all_rows_of_a_request() -> None:
    """Every row of every step asks for it, and it may have as many entries as the vocabulary."""

    class Counted(dict[int, float]):
        reads = 0

        def values(self) -> Any:
            self.reads += 1
            return super().values()

    first, second = Counted({1: -100.0}), Counted({1: -100.0, 2: -100.0})
    logits = torch.tensor([1.0, 5.0, 3.0])
    for bias, best in ((first, 2), (second, 0)):
        params = SamplingParams(logit_bias=bias)
        rows = [SampledRow(params, 0, position, 2, ()) for position in range(2, 10)]
        assert choose(logits.expand(8, -1), rows, ()) == [best] * 8
        assert choose(logits.expand(8, -1), rows, ()) == [best] * 8
    assert (first.reads, second.reads) == (1, 1)
