"""``foredraft train-draft``: makes a draft model for a target out of its own layers and answers."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path
from threading import Event
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from foredraft.cli.faults import CommandError
from foredraft.cli.logs import add_log_level_flag, configure_logging
from foredraft.cli.options import Subparsers, add_command, find_model, number_in, positive_int
from foredraft.cli.until_signal import INTERRUPTED, run_stoppable
from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import RANGES, Range

NAME = "train-draft"
_PACKAGES = {"torch", "transformers", "safetensors", "numpy"}
_ABOVE_ZERO = Range(0.0, 1e6, whole=False, open_low=True)
_DECAY = Range(0.0, 1.0, whole=False)
_WINDOW = Range(64, 2**15 - 1)  # places in a window are kept in 16 bits
_VOCABULARY = Range(16, 2**31 - 1)
_STEPS_APART = 100


def add_parser(subparsers: Subparsers) -> None:
    text = "make a draft model for a target, trained on the target's own answers"
    parser = add_command(subparsers, NAME, text, _run)
    parser.add_argument(
        "--target", metavar="DIR|ID", default=DEFAULT_MODEL, help="whose tokens it will guess"
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, required=True, help="the directory to make"
    )
    _add_data_flags(parser)
    _add_training_flags(parser)
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="where checkpoints and the log are; OUTPUT.work if left out. The same command goes on "
        "from there",
    )
    parser.add_argument(
        "--answers",
        metavar="DIR",
        type=Path,
        help="where the target's answers are, which several drafts may share; WORK/answers if left "
        "out",
    )
    parser.add_argument("--device", default="auto", type=device_name, help="auto, cpu or cuda:N")
    add_log_level_flag(parser)


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        action="append",
        required=True,
        help="prompts that the target answers, a JSON object a line; may be given several times",
    )
    parser.add_argument(
        "--limit-per-file", metavar="N", type=positive_int, help="prompts of each file, else all"
    )
    parser.add_argument(
        "--holdout", metavar="N", type=positive_int, default=96, help="prompts that only measure"
    )
    parser.add_argument(
        "--temperatures",
        metavar="X,Y",
        type=temperatures,
        default="0,0.7,1",
        help="each prompt is answered once at each",
    )
    parser.add_argument(
        "--max-answer", metavar="N", type=positive_int, default=256, help="most tokens of an answer"
    )
    parser.add_argument(
        "--length",
        metavar="N",
        type=number_in(_WINDOW),
        default=512,
        help="tokens of a window; a prompt and its answer fit in one",
    )
    parser.add_argument(
        "--answer-batch",
        metavar="N",
        type=positive_int,
        default=768,
        help="answers that are made at once",
    )


def _add_training_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers",
        metavar="A,B",
        type=_layers,
        help="the target's layers that the draft keeps, from 0; else the first two and last two",
    )
    parser.add_argument(
        "--vocabulary",
        metavar="N",
        type=number_in(_VOCABULARY),
        help="the draft guesses only the N most frequent tokens of the answers, and EOS",
    )
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument(
        "--minutes", metavar="M", type=number_in(_ABOVE_ZERO), help="training takes so long: else 5"
    )
    how_long.add_argument("--steps", metavar="N", type=positive_int, help="or has so many steps")
    parser.add_argument(
        "--batch", metavar="N", type=positive_int, default=48, help="windows in a step"
    )
    parser.add_argument(
        "--learning-rate", metavar="X", type=number_in(_ABOVE_ZERO), default=8e-4, help="highest"
    )
    parser.add_argument(
        "--weight-decay", metavar="X", type=number_in(_DECAY), default=0.01, help="of AdamW"
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=number_in(RANGES["seed"]),
        default=0,
        help="of the order of prompts and windows, and of answers that are sampled",
    )
    parser.add_argument(
        "--log-steps",
        metavar="N",
        type=positive_int,
        default=_STEPS_APART,
        help="steps between two measurements",
    )
    parser.add_argument(
        "--checkpoint-minutes",
        metavar="M",
        type=number_in(_ABOVE_ZERO),
        default=5.0,
        help="minutes between two checkpoints",
    )


def _run(args: argparse.Namespace) -> int:
    configure_logging(NAME, args.log_level)
    package = load_training(NAME, "draft_service.training.run")
    settings = _settings(args)

    def work(stop: Event) -> int:
        package.train_draft(settings, stop, tqdm.write)
        return 0

    try:
        with logging_redirect_tqdm():
            return run_stoppable(work)
    except package.Stopped:
        tqdm.write(f"stopped; what is done is in {settings.work}: the same command goes on there")
        return INTERRUPTED
    except UnsupportedModel as error:
        raise CommandError(f"{settings.target}: {error}") from error


def _settings(args: argparse.Namespace) -> Any:
    """The options as `TrainSettings`, whose package is there only where training is possible."""
    output = args.output.expanduser().absolute()
    work = args.work or output.with_name(f"{output.name}.work")
    minutes = args.minutes if args.minutes or args.steps else 5.0
    return load_training(NAME, "draft_service.training.settings").TrainSettings(
        target=find_model(args.target, "--target"),
        output=output,
        work=work,
        answers=args.answers or work / "answers",
        prompts=tuple(args.prompts),
        limit_per_file=args.limit_per_file,
        holdout=args.holdout,
        temperatures=args.temperatures,
        max_answer=args.max_answer,
        length=args.length,
        answer_batch=args.answer_batch,
        layers=args.layers,
        batch=args.batch,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        steps=args.steps,
        minutes=minutes,
        vocabulary=args.vocabulary,
        log_steps=args.log_steps,
        checkpoint_minutes=args.checkpoint_minutes,
        seed=args.seed,
        device=args.device,
    )


def load_training(command: str, module: str) -> Any:
    """A module of the training package, which is there only where training is possible."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        needed = f"{command} needs {error.name}: pip install 'foredraft[train]'"
        raise CommandError(needed) from error


def temperatures(text: str) -> tuple[float, ...]:
    """How argparse reads temperatures with commas between them."""
    found = tuple(number_in(RANGES["temperature"])(part) for part in text.split(","))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must be temperatures, none twice, not {text!r}")
    return found


def _layers(text: str) -> tuple[int, ...]:
    """How argparse reads numbers of layers with commas between them."""
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise argparse.ArgumentTypeError(f"must be numbers with commas between them, not {text!r}")
    return tuple(int(part) for part in text.split(","))


def device_name(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu or cuda:N, not {text!r}")
    return text
