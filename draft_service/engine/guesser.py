"""From a draft's logits to guesses of the very tokens that the target is about to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.engine.draft_engine import WIDTH, Guesses
from foredraft.engine.noise import gumbel_rows, noise_key
from foredraft.engine.output_ids import OutputIds
from foredraft.engine.sampling import SampledRow, most_likely, only_noise, perturbed_scores
from foredraft.wire.messages import ModelInfo

Places = NDArray[np.int64]
Shares = NDArray[np.float32]


class Guesser:
    """Scores a draft's candidates as its target would, with seed, penalties and all.

    vocab_size: ids from there on are guessed by nobody.
    known: what logits are of, if not of all ids.

    columns, ids: so many logits are looked at, and int64 [columns], what they are of.
    width: guesses of a row.
    """

    def __init__(
        self, target: ModelInfo, vocab_size: int, known: OutputIds | None, device: torch.device
    ) -> None:
        self._eos = target.eos_token_ids
        self._output = None if known is None else known.below(vocab_size)
        self.columns = vocab_size if self._output is None else len(self._output)
        self.width = min(WIDTH, self.columns)
        self.ids = torch.arange(self.columns, device=device)
        if self._output is not None:
            self.ids = self._output.ids
        self._tokens: NDArray[np.int64] = self.ids.cpu().numpy()

    def guesses(self, logits: Tensor, looks: Sequence[SampledRow | None]) -> Guesses:
        """``logits`` float32 [looks, columns] become scores where they are, and are used up."""
        self._score(logits, [(row, look) for row, look in enumerate(looks) if look is not None])
        places, chances = self._find(logits)
        return Guesses(self._tokens[places].tolist(), chances.tolist())

    def _score(self, logits: Tensor, drawn: Sequence[tuple[int, SampledRow]]) -> None:
        noisy = [(row, look) for row, look in drawn if only_noise(look)]
        if noisy:
            rows = [row for row, _ in noisy]
            keys, heats = zip(*[_draw(look) for _, look in noisy], strict=True)
            self._add_noise(logits, rows, keys, heats)
        for row, look in drawn:
            if not only_noise(look):
                scores = perturbed_scores(logits[row], look, self._eos, self._output)
                logits[row].copy_(scores)

    def _add_noise(
        self, logits: Tensor, rows: Sequence[int], keys: Sequence[int], heats: Sequence[float]
    ) -> None:
        """To some rows: under these keys, times these temperatures."""
        columns = torch.tensor(keys)[:, None], torch.tensor(heats)[:, None]
        logits[rows] = self.perturbed(logits[rows], *columns)

    def _find(self, scores: Tensor) -> tuple[Places, Shares]:
        """The best of each row, best first: [rows, width]; ``scores`` are used up."""
        places, shares = most_likely(scores, self.width)
        return places.cpu().numpy(), shares.cpu().numpy()

    def perturbed(self, logits: Tensor, keys: Tensor, temperatures: Tensor) -> Tensor:
        """``logits`` with every row's own noise; ``keys`` (int64) and temperatures: [rows, 1]."""
        noise = gumbel_rows(keys.to(logits.device), self.ids)
        return noise.mul_(temperatures.to(logits.device)).add_(logits)

    def best(self, scores: Tensor) -> Tensor:
        """Tokens and their chances as one tensor that a graph can fill: float32 [rows, 2, width].

        Ids are below 2^24, so float32 holds them.
        """
        places = torch.topk(scores, self.width).indices
        chances = torch.softmax(scores, dim=-1).gather(-1, places)
        return torch.stack((self.ids[places].float(), chances), dim=1)


def _draw(look: SampledRow) -> tuple[int, float]:
    """Key of a row's noise, and its temperature."""
    key = noise_key(look.params.seed, look.choice, look.position)
    return key, look.params.temperature
