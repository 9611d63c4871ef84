"""The target's answers on disk: shards that are there whole or not at all."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from draft_service.training.answer_bar import AnswerBar
from draft_service.training.answerer import Answerer
from draft_service.training.prompt_ids import Ids, PromptIds
from draft_service.training.settings import TrainSettings, derived_seed, write_whole
from draft_service.training.stopped import Stopped
from foredraft.params import InvalidField

logger = logging.getLogger(__name__)

ANSWERS = "--answers"
_SHARD_TOKENS = 2**20
_HELD_OUT = "held_out.safetensors"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    prompt: Ids
    temperature: float


@dataclass(frozen=True, slots=True)
class Answers:
    """Prompts with their answers, one after another.

    tokens: int32 of all of them. lengths: int32 [answers], prompts included; prompt_lengths: int32.
    temperatures: float32 [answers]; seeds: int64 [answers], of the batches they were made in.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    prompt_lengths: NDArray[np.int32]
    temperatures: NDArray[np.float32]
    seeds: NDArray[np.int64]

    @property
    def answer_tokens(self) -> int:
        return int(self.lengths.sum() - self.prompt_lengths.sum())

    def save(self, file: Path) -> None:
        write_whole(file, save({name: getattr(self, name) for name in self.__slots__}))

    @classmethod
    def load(cls, file: Path) -> Answers:
        """Raises InvalidField if the file is none of ours."""
        try:
            return cls(**load(file.read_bytes()))
        except (OSError, SafetensorError, TypeError) as error:
            raise InvalidField(ANSWERS, f"whole shards of answers: {file}: {error}") from None

    @classmethod
    def joined(cls, shards: Sequence[Answers]) -> Answers:
        parts = {name: [getattr(shard, name) for shard in shards] for name in cls.__slots__}
        return cls(**{name: np.concatenate(arrays) for name, arrays in parts.items()})


def make_answers(
    settings: TrainSettings,
    prompts: PromptIds,
    make_answerer: Callable[[], Answerer],
    stop: Event,
    say: Say,
) -> tuple[Answers, Answers]:
    """Answers to train on and held-out ones; only what is not on disk is made.

    Raises:
        Stopped: ``stop`` was set; whole shards are kept.
        InvalidField: a file that is there holds no answers.
    """
    settings.answers.mkdir(parents=True, exist_ok=True)
    shards = _shards(settings, prompts)
    missing = [(file, jobs) for file, jobs in shards if not file.exists()]
    if missing:
        _make_missing(settings, make_answerer(), missing, stop, say)
    held_out, *trained = (Answers.load(file) for file, _ in shards)
    return Answers.joined(trained), held_out


def _shards(settings: TrainSettings, prompts: PromptIds) -> list[tuple[Path, list[Job]]]:
    """Files and what belongs into each: held-out prompts, then about a million tokens a file.

    Over all files in the order of their lengths, so that prompts of a batch are about as long.
    """
    jobs = [Job(ids, heat) for ids in prompts.trained for heat in settings.temperatures]
    jobs.sort(key=lambda job: (len(job.prompt), job.prompt, job.temperature))
    batches = max(1, round(_SHARD_TOKENS / settings.max_answer / settings.answer_batch))
    size = batches * settings.answer_batch
    files = [(settings.answers / _HELD_OUT, [Job(ids, 0.0) for ids in prompts.held_out])]
    for number, first in enumerate(range(0, len(jobs), size)):
        name = f"shard-{number:04d}.safetensors"
        files.append((settings.answers / name, jobs[first : first + size]))
    return files


def _make_missing(
    settings: TrainSettings,
    answerer: Answerer,
    missing: Sequence[tuple[Path, list[Job]]],
    stop: Event,
    say: Say,
) -> None:
    total = sum(len(jobs) for _, jobs in missing)
    with AnswerBar(total) as bar:
        for file, jobs in missing:
            _answer_all(settings, answerer, jobs, file.stem, stop, bar).save(file)
            speed = bar.tokens / bar.seconds
            logger.info("%s: %d tokens so far, %.0f tokens/s", file.name, bar.tokens, speed)
    made, seconds = bar.tokens, bar.seconds
    say(f"{total} answers, {made} tokens, in {seconds:.0f} s ({made / seconds:.0f} tokens/s)")


def _answer_all(
    settings: TrainSettings,
    answerer: Answerer,
    jobs: Sequence[Job],
    name: str,
    stop: Event,
    bar: AnswerBar,
) -> Answers:
    """The answers of one shard, whose seeds no other shard shares."""
    chance = random.Random(derived_seed(settings.seed, f"answers of {name}"))
    rows = settings.answer_batch
    found: list[tuple[Job, list[int], int]] = []
    for batch in (jobs[first : first + rows] for first in range(0, len(jobs), rows)):
        if stop.is_set():
            raise Stopped
        seed = chance.getrandbits(63)
        prompts, heats = [job.prompt for job in batch], [job.temperature for job in batch]
        tell = partial(bar.move, len(batch))
        answers = answerer.answer(prompts, heats, seed, stop, tell)
        found += [(job, ids, seed) for job, ids in zip(batch, answers, strict=True)]
        bar.batch_done(len(batch), sum(map(len, answers)))
    return _collected(found)


def _collected(found: Iterable[tuple[Job, list[int], int]]) -> Answers:
    tokens: list[int] = []
    rows = []
    for job, ids, seed in found:
        tokens += [*job.prompt, *ids]
        rows.append((len(job.prompt) + len(ids), len(job.prompt), job.temperature, seed))
    lengths, prompt_lengths, temperatures, seeds = zip(*rows, strict=True)
    return Answers(
        tokens=np.array(tokens, dtype=np.int32),
        lengths=np.array(lengths, dtype=np.int32),
        prompt_lengths=np.array(prompt_lengths, dtype=np.int32),
        temperatures=np.array(temperatures, dtype=np.float32),
        seeds=np.array(seeds, dtype=np.int64),
    )
