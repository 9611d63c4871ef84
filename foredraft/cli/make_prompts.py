"""``foredraft make-prompts``: a target makes up what users might say, to train a draft on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from threading import Event

from tqdm import tqdm

from foredraft.cli.faults import CommandError
from foredraft.cli.logs import add_log_level_flag, configure_logging
from foredraft.cli.options import Subparsers, add_command, find_model, number_in, positive_int
from foredraft.cli.train_draft import device_name, load_training, temperatures
from foredraft.cli.until_signal import INTERRUPTED, run_stoppable
from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import RANGES, InvalidField

NAME = "make-prompts"


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, NAME, "let a target make up prompts, for train-draft --prompts", _run
    )
    parser.add_argument(
        "--target", metavar="DIR|ID", default=DEFAULT_MODEL, help="whose chat template is used"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, required=True, help="the file to write"
    )
    parser.add_argument(
        "--count", metavar="N", type=positive_int, default=10_000, help="prompts to begin"
    )
    parser.add_argument(
        "--begin",
        metavar="TEXT",
        action="append",
        help="what a prompt begins with; may be given several times: in turn; else nothing",
    )
    parser.add_argument(
        "--temperatures",
        metavar="X,Y",
        type=temperatures,
        default="0.8,1",
        help="of the tokens, in turn",
    )
    parser.add_argument(
        "--max-tokens", metavar="N", type=positive_int, default=512, help="of a prompt"
    )
    parser.add_argument(
        "--batch", metavar="N", type=positive_int, default=768, help="prompts made at once"
    )
    parser.add_argument("--seed", metavar="N", type=number_in(RANGES["seed"]), default=0)
    parser.add_argument("--device", default="auto", type=device_name, help="auto, cpu or cuda:N")
    add_log_level_flag(parser)


def _run(args: argparse.Namespace) -> int:
    configure_logging(NAME, args.log_level)
    folder = args.output.parent
    if args.output.exists() or not folder.is_dir() or not os.access(folder, os.W_OK):
        allowed = f"a new file in a folder to write to, not {str(args.output)!r}"
        raise InvalidField("--output", allowed)
    if 0.0 in args.temperatures:
        raise InvalidField("--temperatures", "above 0: else all prompts with one beginning are one")
    package = load_training(NAME, "draft_service.training.made_prompts")
    settings = package.PromptSettings(
        target=find_model(args.target, "--target"),
        output=args.output,
        count=args.count,
        begins=tuple(args.begin or [""]),
        temperatures=args.temperatures,
        most=args.max_tokens,
        batch=args.batch,
        seed=args.seed,
        device=args.device,
    )

    def work(stop: Event) -> int:
        made = package.make_prompts(settings, stop)
        tqdm.write(f"{settings.output}: {made} prompts")
        return 0

    try:
        return run_stoppable(work)
    except package.Stopped:
        tqdm.write("stopped; nothing was written")
        return INTERRUPTED
    except UnsupportedModel as error:
        raise CommandError(f"{settings.target}: {error}") from error
    except OSError as error:
        raise CommandError(f"{settings.output} cannot be written: {error.strerror}") from error
