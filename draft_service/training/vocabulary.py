"""A reduced output vocabulary: the ids that a draft can guess."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from draft_service.training.answers import Answers
from draft_service.training.settings import write_whole
from foredraft.engine.model_config import VOCABULARY_FILE


def answer_counts(answers: Answers, vocabulary: int) -> NDArray[np.int64]:
    """How often each id stands in an answer, [vocabulary]; prompts do not count."""
    places = np.arange(len(answers.tokens))
    starts = np.repeat(np.cumsum(answers.lengths) - answers.lengths, answers.lengths)
    asked = np.repeat(answers.prompt_lengths, answers.lengths)
    return np.bincount(answers.tokens[places - starts >= asked], minlength=vocabulary)


def choose_vocabulary(
    counts: NDArray[np.int64], size: int, ends: Iterable[int], specials: Iterable[int]
) -> NDArray[np.int32]:
    """The ``size`` most frequent ids, ``ends`` (EOS) and those ``specials`` that occur; ascending.

    Of ids that are as frequent the lowest comes first.
    """
    frequent = np.argsort(-counts, kind="stable")[:size].tolist()
    kept = {*frequent, *ends, *(token for token in specials if counts[token])}
    return np.array(sorted(kept), dtype=np.int32)


def save_vocabulary(directory: Path, ids: NDArray[np.int32]) -> None:
    """Write int32 ``ids`` [n], ascending and unique, beside a draft's other files."""
    write_whole(directory / VOCABULARY_FILE, save({"ids": ids}))
