"""The kernel's tokens are the engine's: whatever the options, the path and the neighbours."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.device_sampling import Slot, options_of, rows_of, sampled_rows
from torch import Tensor

from foredraft.engine.sampling import choose, token_logprobs
from foredraft.params import SamplingParams
from kernels.sample_candidates import Candidates, sample_candidates_reference
from kernels.sample_coupled import Choices, sample_coupled, sample_coupled_reference
from kernels.sample_threshold import sample_threshold, sample_threshold_reference

EOS = (2, 9)
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.3}
BIAS = {0: 5.0, 7: -3.0, 150: 2.5, 301: 9.0}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.7, "logit_bias": BIAS},
    {"temperature": 1e-3, "top_k": 3},
    {"temperature": 0.7},
    {"temperature": 1.3, **PENALTIES, "logit_bias": BIAS, "min_tokens": 40},
    {"temperature": 0.9, "top_k": 5},
    {"temperature": 100.0, "top_p": 0.9},
    {"temperature": 0.8, "min_p": 0.2},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 2.0, "top_k": 1},
    {"temperature": 5.0, "top_p": 1e-6, **PENALTIES, "min_tokens": 40},
]


def _slot(rng: random.Random, vocab: int, options: dict[str, Any], guesses: int) -> Slot:
    params = SamplingParams(seed=rng.getrandbits(64), **options)
    prompt, written = rng.randrange(1, 20), rng.randrange(0, 12)
    tokens = tuple(rng.randrange(min(vocab, 60)) for _ in range(prompt + written))
    tree = tuple((rng.randrange(min(vocab, 60)), rng.randrange(-1, n)) for n in range(guesses))
    return Slot(params, tokens, prompt, tree, choice=rng.randrange(3))


def _logits(rows: int, vocab: int, seed: int) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2.5


def _sampled(
    logits: Tensor, slots: Sequence[Slot], vocab: int, device: torch.device, padding: int = 0
) -> tuple[list[int], Choices]:
    rows = rows_of(slots, padding, device)
    padded = torch.cat([logits, torch.full((padding, logits.shape[1]), torch.nan)])
    out = Choices.empty(len(padded), vocab, device)
    sample_coupled(padded.to(device), options_of(slots, vocab, EOS, device), rows, out)
    return out.token.tolist(), out


@pytest.mark.parametrize("vocab", [1, 333])
def test_tokens_are_the_engines(device: torch.device, vocab: int) -> None:
    rng = random.Random(vocab)
    slots = [
        _slot(rng, vocab, options, guesses=2 if PENALTIES.items() <= options.items() else 0)
        for options in (OPTIONS if vocab > 1 else OPTIONS[3::4])
    ]
    rows = sampled_rows(slots)
    logits = _logits(len(rows), vocab, seed=vocab)
    chosen, out = _sampled(logits, slots, vocab, device)
    wanted = choose(logits, rows, EOS)
    assert chosen == wanted
    assert vocab == 1 or len(set(wanted)) > len(slots) // 2
    assert out.sound.all()
    options, layout = options_of(slots, vocab, EOS, device), rows_of(slots, 0, device)
    references = [
        sample_coupled_reference(logits.to(device), row, options, layout)
        for row in range(len(rows))
    ]
    assert references == wanted


def test_the_whole_of_a_large_vocabulary_is_looked_at(device: torch.device) -> None:
    """Several parts and several tiles, and columns behind the vocabulary that would win."""
    rng, vocab = random.Random(5), 4_777
    options = [{}, {"temperature": 3.0}, {"temperature": 9.0, "top_k": 300, "top_p": 0.97}]
    slots = [_slot(rng, vocab, chosen, guesses=0) for chosen in options]
    logits = _logits(len(slots), vocab + 5, seed=2)
    logits[:, vocab:] = 1e4
    logits[0, 4_500] = 100.0
    crowded = logits[2, 512:900], logits[2, 1_536:1_736]  # in chunks of the second part
    for place, below in zip(crowded, (1, 3), strict=True):
        place.copy_(logits[2, :vocab].max() - below)
    chosen, out = _sampled(logits, slots, vocab, device)
    assert chosen == choose(logits[:, :vocab], sampled_rows(slots), EOS)
    assert chosen[0] == 4_500
    held, rows = options_of(slots, vocab, EOS, device), rows_of(slots, 0, device)
    cut, total, score = sample_candidates_reference(logits.to(device), 2, held, rows)
    assert torch.equal(out.candidates.cut[2], cut) and cut.tolist() == [4.0, 2.0]
    assert torch.equal(out.candidates.score[2], score)
    assert torch.allclose(out.candidates.total[2], total, rtol=1e-5)
    assert not out.candidates.score[:2].any()


def test_thresholds_are_the_references(device: torch.device) -> None:
    """Few distinct scores: every edge is a tie, and ties stay in."""
    rng, vocab = random.Random(8), 200
    options = [
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 0.5, "top_p": 0.5},
        {"temperature": 1.0, "top_k": 30, "top_p": 0.7},
        {"temperature": 2.0, "top_k": 199, "min_p": 0.3},
        {"temperature": 1.0, "top_k": 200},
        {"temperature": 0.0, "top_k": 3},
    ]
    slots = [_slot(rng, vocab, chosen, guesses=0) for chosen in [options[0], *options]]
    logits = _logits(len(slots), vocab, seed=4).round()
    logits[0] = -0.0
    logits[0, 3] = 0.0
    logits[1, 50:] = -torch.inf
    rows, held = rows_of(slots, 0, device), options_of(slots, vocab, EOS, device)
    out = torch.empty(len(logits), device=device)
    candidates = Candidates.empty(len(logits), vocab, device)
    sample_threshold(logits.to(device), held, rows, candidates, out)
    wanted = [
        sample_threshold_reference(logits.to(device), row, held, rows) for row in range(len(logits))
    ]
    assert torch.equal(out, torch.stack(wanted))
    assert len(set(out.tolist())) > 4


def test_edges_among_candidates_and_beyond(device: torch.device) -> None:
    """400 scores are near the largest, the others are not: the candidates are those 400."""
    generator, vocab = torch.Generator().manual_seed(6), 1_400
    near, far = torch.rand(400, generator=generator), torch.rand(1_000, generator=generator)
    row = torch.cat([8 + 2 * near, -1 + 6.9 * far])
    row = row[torch.randperm(vocab, generator=generator)]
    row[700] = 10.0
    among = [{"top_p": 0.9}, {"min_p": 0.4}, {"top_k": 300, "top_p": 0.7}]
    beyond = [{"top_k": 450}, {"top_p": 0.9999}, {"min_p": 0.002}]
    flat = {"top_k": 700, "temperature": 0.1, "top_p": 0.8}
    options = [{"temperature": 1.0, **one} for one in [*among, *beyond, flat]]
    slots = [_slot(random.Random(1), vocab, one, guesses=0) for one in options]
    logits = row.repeat(len(slots), 1)
    logits[-1] /= 8
    rows, held = rows_of(slots, 0, device), options_of(slots, vocab, EOS, device)
    out, candidates = torch.empty(len(slots)), Candidates.empty(len(slots), vocab, device)
    out = sample_threshold(logits.to(device), held, rows, candidates, out.to(device))
    assert candidates.cut.flatten().tolist() == [4.0] * 6 + [0.0]
    assert int((candidates.score[0] > -torch.inf).sum()) in (400, 401)
    wanted = [
        sample_threshold_reference(logits.to(device), row, held, rows) for row in range(len(slots))
    ]
    assert torch.equal(out, torch.stack(wanted))
    assert len(set(out.tolist())) == len(slots)
    assert bool((out[:3] > 8).all()) and bool((out[3:6] < 6).all())


def test_ties_go_to_the_lowest_id_and_nan_never_wins(device: torch.device) -> None:
    vocab = 2_100
    slots = [Slot(SamplingParams(temperature=t), (1,), 1) for t in (0.0, 0.0, 0.0, 0.0, 1e-4)]
    logits = torch.zeros(len(slots), vocab)
    logits[1, [30, 2_050]] = 4.0
    logits[2, 1] = torch.nan
    logits[2, 5] = 1.0
    logits[3] = torch.nan
    logits[4, 9] = torch.inf
    chosen, out = _sampled(logits, slots, vocab, device)
    assert chosen == [0, 30, 5, 0, 9]
    assert out.sound.tolist() == [1, 1, 0, 0, 0]
    options, rows = options_of(slots, vocab, EOS, device), rows_of(slots, 0, device)
    spared = Choices.empty(len(slots), vocab, device)
    sample_coupled(logits.to(device), options, rows, spared, filters=False)
    assert torch.equal(spared.token, out.token)


def test_a_row_is_the_same_alone_and_among_others(device: torch.device) -> None:
    rng, vocab = random.Random(3), 90
    slots = [_slot(rng, vocab, {**options, "logprobs": 0}, 1) for options in OPTIONS[4:8:3]]
    logits = _logits(2 * len(slots), vocab, seed=6)
    together, all_out = _sampled(logits, slots, vocab, device, padding=5)
    assert together[-5:] == [0] * 5
    assert not all_out.threshold[-5:].any()
    for index, slot in enumerate(slots):
        mine = slice(2 * index, 2 * index + 2)
        alone, out = _sampled(logits[mine], [slot], vocab, device)
        assert alone == together[mine]
        assert torch.equal(out.best, all_out.best[mine])
        assert torch.equal(out.threshold, all_out.threshold[mine])
        assert torch.equal(out.logprob, all_out.logprob[mine])


def test_log_probabilities_are_those_of_raw_logits(device: torch.device) -> None:
    rng, vocab = random.Random(1), 4_200
    wanting = _slot(rng, vocab, {"temperature": 0.9, "logprobs": 0, **PENALTIES}, guesses=1)
    plain = _slot(rng, vocab, {}, guesses=0)
    logits = _logits(3, vocab, seed=9)
    chosen, out = _sampled(logits, [wanting, plain], vocab, device)
    for row in range(2):
        wanted = token_logprobs(logits[row], chosen[row], 0).chosen
        assert out.logprob[row].item() == pytest.approx(wanted, abs=1e-5)
    assert out.logprob[2] == 0


def test_rows_that_do_not_belong_together_are_refused(device: torch.device) -> None:
    slots = [Slot(SamplingParams(), (1,), 1)]
    options, rows = options_of(slots, 50, EOS, device), rows_of(slots, 1, device)
    out = Choices.empty(2, 50, device)
    logits = torch.zeros(2, 50, device=device)
    with pytest.raises(ValueError, match="logits must be"):
        sample_coupled(logits.T, options, rows, out)
    with pytest.raises(ValueError, match="2 rows"):
        sample_coupled(logits[:1], options, rows, out)
    with pytest.raises(ValueError, match="50 columns"):
        sample_coupled(logits[:, :49].contiguous(), options, rows, out)
    with pytest.raises(ValueError, match="2 rows and 50 tokens"):
        sample_coupled(logits, options, rows, Choices.empty(3, 50, device))
