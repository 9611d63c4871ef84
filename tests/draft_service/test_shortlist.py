"""A head in two steps: what int8 leaves over is what float16 would have taken."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from support.draft_logits import load_own_draft
from support.tiny_models import make_tiny_llama

from draft_service.engine.draft_engine import Extension
from draft_service.engine.guesser import Guesser
from draft_service.engine.int8 import has_int8
from draft_service.engine.shortlist import ShortlistHead
from foredraft.engine.linear import HalfLinear, has_half_linear
from foredraft.engine.sampling import SampledRow
from foredraft.params import SamplingParams
from foredraft.wire.messages import ModelInfo

CASES = {
    "greedy": SamplingParams(ignore_eos=True),
    "sampled": SamplingParams(ignore_eos=True, temperature=0.8, seed=2**40 + 1),
    "filtered": SamplingParams(ignore_eos=True, temperature=1.0, seed=3, top_k=20, top_p=0.9),
    "penalized": SamplingParams(min_tokens=9, repetition_penalty=1.3, logit_bias={7: 3.0}),
}


def make_guesser(vocab: int) -> Guesser:
    target = ModelInfo("tiny", "hash", vocab, context_length=64, eos_token_ids=())
    return Guesser(target, vocab, None, torch.device("cpu"))


@pytest.mark.skipif(
    not (has_half_linear() and has_int8()), reason="the library has no such product"
)
@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_a_shortlist_changes_no_guess_but_at_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    """Rows of one pass, with int8 products before float16's and without."""
    directory = make_tiny_llama(tmp_path, vocab=3000)
    short = load_own_draft(directory, device="cpu", dtype="float16")
    monkeypatch.setattr("draft_service.engine.lean.has_int8", lambda: False)
    whole = load_own_draft(directory, device="cpu", dtype="float16")
    assert isinstance(short._forward._model.head, ShortlistHead)
    assert isinstance(whole._forward._model.head, HalfLinear)
    source = random.Random(0)
    tokens = source.choices(range(3, 3000), k=64)
    looks = [
        None if params.plain else SampledRow(params, 0, place + 1, 1, tokens[: place + 1])
        for place in range(64)
    ]
    found = []
    for engine in (short, whole):
        extension = Extension(range(1, 5), 0, tokens, [], [], looks)
        found.append(engine.extend([extension]))
    same = [a == b for a, b in zip(found[0].tokens, found[1].tokens, strict=True)]
    best = [torch.tensor(guesses.chances)[:, 0] for guesses in found]
    # Filters are cut at rough logits, so that what is on the edge may fall in or out.
    least = 60 if params.top_k else 64
    assert sum(same) >= least
    assert torch.isclose(*best, atol=1e-2, rtol=0.1).sum() >= least


def test_rough_logits_are_mended_before_they_are_compared() -> None:
    """Of three that are close the rough ones prefer the wrong one, and chances are cut at 1."""
    guesser = make_guesser(40)
    rough = torch.full((1, 40), -30.0)
    rough[0, [5, 6, 7]] = torch.tensor([2.0, 2.1, 2.2])
    true = rough.clone()
    true[0, [5, 6, 7]] = torch.tensor([2.3, 2.1, 2.0])
    mended = guesser.guesses(rough, [None], lambda places: true.gather(-1, places))
    assert mended.tokens == [[5, 6, 7]]
    expected = torch.softmax(true, dim=-1)[0, [5, 6, 7]]
    torch.testing.assert_close(torch.tensor(mended.chances[0]), expected, atol=0.05, rtol=0.1)
    sure = guesser.guesses(torch.eye(40)[:1] * 50, [None], lambda places: places * 0.0 + 99.0)
    assert sure.chances[0][0] == 1.0


@pytest.mark.skipif(not has_int8(), reason="the library has no such product")
def test_a_row_that_is_no_number_does_not_end_the_pass() -> None:
    """Its guesses have no chance, and its neighbour has its own."""
    weight = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    head, guesser = ShortlistHead(weight), make_guesser(50)
    x = torch.stack((torch.full((32,), torch.nan), weight[7]))
    guesses = guesser.guesses(head(x), [None, None], partial(head.exact, x))
    assert not any(chance > 0.0 for chance in guesses.chances[0])
    assert guesses.tokens[1][0] == 7 and guesses.chances[1][0] > 0.9
