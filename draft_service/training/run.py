"""A training run from its settings to a directory; every stage goes on where it was."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray

from draft_service.training.answerer import Answerer
from draft_service.training.answers import ANSWERS, Answers, Say, make_answers
from draft_service.training.batches import Windows, lay_out_windows
from draft_service.training.card import Facts, model_card
from draft_service.training.export import check_output, export
from draft_service.training.pair import Pair, load_pair, use_device
from draft_service.training.plot import draw
from draft_service.training.progress_log import Line, ProgressLog
from draft_service.training.prompt_ids import PromptIds, read_prompt_ids
from draft_service.training.prune import choose_layers
from draft_service.training.settings import (
    TrainSettings,
    answer_identity,
    hold_to,
    training_identity,
)
from draft_service.training.stopped import Stopped
from draft_service.training.trainer import Material, Trainer
from draft_service.training.vocabulary import answer_counts, choose_vocabulary, save_vocabulary
from draft_service.training.within_memory import within_memory
from foredraft.engine.model_config import ModelConfig, check_whole, read_model_config
from foredraft.params import InvalidField
from foredraft.tokenizer_hash import read_tokenizer

__all__ = ["Stopped", "train_draft"]

logger = logging.getLogger(__name__)

LOG, PLOT, CARD = "training.jsonl", "training.png", "README.md"


def train_draft(settings: TrainSettings, stop: Event, say: Say) -> None:
    """Make ``settings.output``; ``say`` is told in one line what a stage has brought.

    Raises:
        Stopped: ``stop`` was set; the same settings go on from there.
        InvalidField: a setting cannot be used, or differs from the one a stage was begun with.
        UnsupportedModel: the engine does not run this target.
    """
    check_output(settings.output)
    check_whole(settings.target)
    shape = read_model_config(settings.target)
    layers = choose_layers(settings.layers, shape.layers)
    _check_length(settings, shape)
    device = use_device(settings.device)
    prompts = read_prompt_ids(settings)
    _hold(settings, layers)
    say(
        f"{len(prompts.trained)} prompts to train on, {len(prompts.held_out)} held out, "
        f"{prompts.too_long} left out as too long"
    )
    pair = load_pair(settings.target, layers, device, settings.length)

    def make_answerer() -> Answerer:
        jobs = max(len(prompts.held_out), len(prompts.trained) * len(settings.temperatures))
        rows = min(settings.answer_batch, jobs)
        eos, room = shape.eos_token_ids, (settings.length, settings.max_answer)
        return Answerer(pair.decoder, pair.head, eos, rows, *room)

    with within_memory("--answer-batch"):
        answers, held_out = make_answers(settings, prompts, make_answerer, stop, say)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # keys and values of all these answers are not needed any more
    ids = _guessable(settings, pair, answers)
    material = Material(
        trained=lay_out_windows(answers, settings.length),
        held_out=_one_a_window(held_out),
        ids=torch.from_numpy(ids).to(pair.device, torch.int64),
    )
    progress = ProgressLog(settings.work / LOG)
    with within_memory("--batch"):
        Trainer(settings, pair, material, progress).run(stop)
    _publish(settings, pair, progress.lines(), ids, _facts(pair, layers, prompts, answers, ids))
    last = progress.lines()[-1].agreement
    say(f"{settings.output}: top-1 {last.top1:.3f}, {last.chain5:.2f} tokens/step in chains of 5")


def _one_a_window(answers: Answers) -> Windows:
    """Windows of one answer each, no wider than the longest needs."""
    longest = int(answers.lengths.max())
    return lay_out_windows(answers, longest, [[item] for item in range(len(answers.lengths))])


def _hold(settings: TrainSettings, layers: tuple[int, ...]) -> None:
    """What was begun is gone on with by the same settings only."""
    for directory, option, identity in (
        (settings.answers, ANSWERS, answer_identity(settings)),
        (settings.work, "--work", training_identity(settings, layers)),
    ):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidField(option, f"a folder: {directory}: {error.strerror}") from None
        hold_to(directory / "settings.json", identity, option)


def _check_length(settings: TrainSettings, shape: ModelConfig) -> None:
    if settings.length > shape.context_length:
        raise InvalidField("--length", f"at most the target's context, {shape.context_length}")
    if settings.max_answer >= settings.length:
        raise InvalidField("--max-answer", f"less than --length, which is {settings.length}")


def _guessable(settings: TrainSettings, pair: Pair, answers: Answers) -> NDArray[np.int32]:
    """The ids that the draft can guess: all, or a reduced vocabulary."""
    whole = len(pair.head)
    if settings.vocabulary is None:
        return np.arange(whole, dtype=np.int32)
    if settings.vocabulary >= whole:
        raise InvalidField("--vocabulary", f"less than the target's vocabulary, {whole}")
    added = read_tokenizer(settings.target).get_added_tokens_decoder()
    specials = [token for token, entry in added.items() if entry.special and token < whole]
    counts = answer_counts(answers, whole)
    return choose_vocabulary(counts, settings.vocabulary, pair.shape.eos_token_ids, specials)


def _facts(
    pair: Pair,
    layers: tuple[int, ...],
    prompts: PromptIds,
    answers: Answers,
    ids: NDArray[np.int32],
) -> Facts:
    cuda = pair.device.type == "cuda"
    machine = torch.cuda.get_device_name(pair.device) if cuda else f"a CPU ({platform.machine()})"
    return Facts(
        layers=layers,
        target_layers=pair.shape.layers,
        guessable=len(ids),
        vocabulary=len(pair.head),
        prompts=len(prompts.trained),
        answers=len(answers.lengths),
        answer_tokens=answers.answer_tokens,
        machine=machine,
    )


def _publish(
    settings: TrainSettings,
    pair: Pair,
    lines: list[Line],
    ids: NDArray[np.int32],
    facts: Facts,
) -> None:
    def add(made: Path) -> None:
        (made / CARD).write_text(model_card(settings, facts, lines[-1]), encoding="utf-8")
        (made / LOG).write_text("".join(line.text() + "\n" for line in lines), encoding="utf-8")
        if settings.vocabulary is not None:
            save_vocabulary(made, ids)
        try:
            draw(lines, made / PLOT)
        except ModuleNotFoundError as error:
            logger.warning("no plot: %s is missing; pip install 'foredraft[train]'", error.name)

    export(pair, settings.target, settings.output, add)
