"""Coupled sampling: the token at a position is a function of the logits and the request.

The chosen token is ``argmax(l' + T * G(seed, choice, position))``, where l' are the logits after
penalties, bias and filters. The drafter computes the same function to guess it. Every row is
processed in tensors of one fixed shape, so its choice cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.engine.noise import gumbel, gumbel_of
from foredraft.engine.output_ids import OutputIds
from foredraft.params import SamplingParams
from foredraft.wire.messages import TokenLogprobs

_NUCLEUS_PREFIX = 256  # top-p is usually decided among so few; else all are sorted
_REMEMBERED = 32  # requests whose biases and ends are kept as tensors


@dataclass(frozen=True, slots=True)
class SampledRow:
    """Where a row's token stands.

    position: absolute index of the token being chosen, prompt included.
    history: all tokens before ``position``; may be empty if ``params.penalized`` is False.
    """

    params: SamplingParams
    choice: int
    position: int
    prompt_length: int
    history: Sequence[int]


def choose(logits: Tensor, rows: Sequence[SampledRow | None], eos: tuple[int, ...]) -> list[int]:
    """The target's token for every row of ``logits`` [rows, vocab].

    A row is None where that is its best token, as ``params.plain`` says.
    """
    choices: list[int] = lowest_argmax(logits).tolist() if None in rows else [0] * len(rows)
    for n, row in enumerate(rows):
        if row is not None:
            choices[n] = int(lowest_argmax(perturbed_scores(logits[n], row, eos)))
    return choices


def lowest_argmax(scores: Tensor) -> Tensor:
    """Index of the largest entry along the last dimension; the lowest index wins ties.

    NaN cannot win: the result is an index whatever the scores.
    """
    best = _first_argmax(scores)
    if scores.gather(-1, best[..., None]).isnan().any():
        numbers = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        best = _first_argmax(numbers)
    return best


def most_likely(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row, best first, lowest index first where they are equal.

    On a CPU, ``scores`` [rows, n] are overwritten: to look for a few of many several times is
    quicker than to look for all of them at once.

    Returns:
        Indices, int64 [rows, count], and their shares of softmax(scores), float32 [rows, count].
    """
    count = min(count, scores.shape[-1])
    shares = torch.softmax(scores, dim=-1)
    if scores.device.type == "cpu":
        places = torch.from_numpy(_best_places(scores.numpy(), count))
    else:
        places = torch.topk(scores, count).indices
    return places, shares.gather(-1, places)


def _best_places(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Indices [rows, count]; takes what it has found out of ``scores``."""
    rows = np.arange(len(scores))
    places = np.empty((len(scores), count), dtype=np.int64)
    for rank in range(count):
        places[:, rank] = found = scores.argmax(-1)
        scores[rows, found] = -np.inf
    return places


def _first_argmax(scores: Tensor) -> Tensor:
    """Numpy's search is an order of magnitude quicker than torch's on a CPU; both take the first.

    NaN counts as the largest number in both.
    """
    if scores.device.type == "cpu":
        return torch.from_numpy(np.asarray(scores.numpy().argmax(-1)))
    return scores.argmax(-1)


def perturbed_scores(
    logits: Tensor, row: SampledRow, eos: tuple[int, ...], output: OutputIds | None = None
) -> Tensor:
    """Scores whose argmax is the choice: float32 [vocab].

    ``eos`` and the request's stop ids cannot win before ``min_tokens`` tokens exist.
    ``output``: the ids that ``logits`` and scores are of, if they are not those below ``vocab``;
    an id has the score that it would have among all, but for the filters, which see no others.
    """
    params = row.params
    scores = _adjusted(logits, row, eos, output)
    if params.greedy:
        return scores
    key = params.seed, row.choice, row.position
    if output is None:
        noise = gumbel(*key, scores.shape[-1], scores.device)
    else:
        noise = gumbel_of(*key, output.ids)
    return noise.mul_(params.temperature).add_(_filtered(scores, params))


def only_noise(row: SampledRow) -> bool:
    """True if the row's scores are its logits and its noise, and nothing else."""
    return not (row.params.greedy or row.params.filtered or _adjusts(row))


def token_logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs:
    """Log-probabilities under the raw ``logits`` [vocab], the ``top`` best, lowest ids first."""
    logprobs = torch.log_softmax(logits, dim=-1)
    if top == 0:
        return TokenLogprobs(chosen=float(logprobs[token]))
    least = torch.topk(logprobs, min(top, logprobs.shape[-1])).values[-1]
    ids = (logprobs >= least).nonzero()[:, 0]
    ids = ids[logprobs[ids].sort(descending=True, stable=True).indices[:top]]
    return TokenLogprobs(
        chosen=float(logprobs[token]),
        top_ids=tuple(ids.tolist()),
        top_values=tuple(logprobs[ids].tolist()),
    )


def _adjusted(
    logits: Tensor, row: SampledRow, eos: tuple[int, ...], output: OutputIds | None
) -> Tensor:
    """Penalties, bias and min_tokens; the input stays as it is."""
    if not _adjusts(row):
        return logits
    params, vocab = row.params, logits.shape[-1]
    scores = logits.clone()
    if params.penalized:
        _penalize(scores, row, output)
    if params.logit_bias:
        places, biases = _bias(_Same(params), vocab, output, scores.device)
        scores[places] += biases
    if _too_early(row):
        scores[_ends(_Same(params), eos, vocab, output, scores.device)] = -torch.inf
    return scores


def _adjusts(row: SampledRow) -> bool:
    return row.params.penalized or bool(row.params.logit_bias) or _too_early(row)


def _too_early(row: SampledRow) -> bool:
    """True while the text must not end yet."""
    return row.position - row.prompt_length < row.params.min_tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A key that is equal for the same object only: to compare or hash a large bias is slow.

    The object lives as long as its key, so that no other can have its id meanwhile.
    """

    params: SamplingParams

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.params is other.params

    def __hash__(self) -> int:
        return id(self.params)


# All rows of a request share its parameters, so these are made once per request. With more
# requests at once they are made again at each step, which is slower and nothing else.
@lru_cache(maxsize=_REMEMBERED)
def _bias(
    key: _Same, vocab: int, output: OutputIds | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Places of scores and what is added to them: int64 and float32 [entries]."""
    entries = key.params.logit_bias
    ids = torch.tensor(list(entries.keys()), dtype=torch.int64, device=device)
    biases = torch.tensor(list(entries.values()), dtype=torch.float32, device=device)
    places, known = _places(ids, vocab, output)
    return places, biases[known]


@lru_cache(maxsize=_REMEMBERED)
def _ends(
    key: _Same, eos: tuple[int, ...], vocab: int, output: OutputIds | None, device: torch.device
) -> Tensor:
    """Places of ids that would end the text: int64 [ids]. A draft may not know them all."""
    ends = torch.tensor(sorted(key.params.ends(eos)), dtype=torch.int64, device=device)
    return _places(ends, vocab, output)[0]


def _places(ids: Tensor, vocab: int, output: OutputIds | None) -> tuple[Tensor, Tensor]:
    """Places of those ids that have a score, and which of them those are: [ids]."""
    if output is not None:
        return output.find(ids)
    known = ids < vocab
    return ids[known], known


def _penalize(scores: Tensor, row: SampledRow, output: OutputIds | None) -> None:
    """Repetition over prompt and output (Keskar et al. 2019); the others over the output."""
    params = row.params
    # By way of numpy, which reads a long tuple faster than torch does.
    history = torch.from_numpy(np.array(row.history, dtype=np.int64)).to(scores.device)
    if params.repetition_penalty != 1.0:
        seen = history.unique()
        if output is not None:
            seen, _ = output.find(seen)
        values = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        written, counts = history[row.prompt_length :].unique(return_counts=True)
        if output is not None:
            written, known = output.find(written)
            counts = counts[known]
        scores[written] -= params.frequency_penalty * counts + params.presence_penalty


def _filtered(scores: Tensor, params: SamplingParams) -> Tensor:
    """top-k, then top-p, then min-p over softmax(scores / T); what falls out is -inf."""
    kept = scores
    if 0 < params.top_k < scores.shape[-1]:
        kth = torch.topk(kept, params.top_k).values[-1]
        kept = kept.masked_fill(kept < kth, -torch.inf)
    if params.top_p < 1.0:
        kept = _nucleus(kept, params)
    if params.min_p > 0.0:
        scaled = kept / params.temperature
        floor = scaled.amax() + torch.log(torch.tensor(params.min_p, device=scores.device))
        kept = kept.masked_fill(scaled < floor, -torch.inf)
    return kept


def _nucleus(scores: Tensor, params: SamplingParams) -> Tensor:
    """Keep the smallest set of best tokens that holds at least top_p of the mass."""
    scaled = scores / params.temperature
    probabilities = torch.softmax(scaled, dim=-1)
    ordered = torch.topk(probabilities, min(_NUCLEUS_PREFIX, len(probabilities))).values
    mass = ordered.cumsum(0)
    if mass[-1] < params.top_p and len(ordered) < len(probabilities):
        ordered = probabilities.sort(descending=True).values
        mass = ordered.cumsum(0)
    count = int((mass - ordered < params.top_p).sum())
    return scores.masked_fill(probabilities < ordered[max(count, 1) - 1], -torch.inf)
