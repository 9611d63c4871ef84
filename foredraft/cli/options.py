"""Flags that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from foredraft.cli.faults import CommandError
from foredraft.config import KV_MEMORY_MIB, TARGET_DTYPES, RateLimit
from foredraft.models.catalog import DEFAULT_MODEL, KNOWN_MODELS
from foredraft.models.fetch import ModelError
from foredraft.models.resolve import resolve_draft, resolve_model, wants_draft
from foredraft.params import InvalidField, Range, Speculation

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
DEFAULT_GRPC_PORT = 50051
DRAFT_NAMES = "DIR|none|auto"
_A_DRAFT = "a model directory or id, or auto where a draft is shipped for the target,"
_COUNT = Range(0, 2**31 - 1)
_POSITIVE = Range(1, 2**31 - 1)
_PORT = Range(0, 2**16 - 1)
_PERIOD = Range(0.0, 86_400.0, whole=False, open_low=True)


def add_command(
    subparsers: Subparsers, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A subcommand whose one-line ``text`` stands in both helps."""
    parser = subparsers.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="DIR|ID",
        default=DEFAULT_MODEL,
        help="the target: a Hugging Face directory (Llama, Mistral, Qwen2, Qwen3), or a known id",
    )
    parser.add_argument(
        "--draft",
        metavar=DRAFT_NAMES,
        default="auto",
        help="the draft model; auto: the one that is shipped for the target, if there is one; "
        "none: the suffix cache alone",
    )
    parser.add_argument(
        "--dtype",
        choices=TARGET_DTYPES,
        default="auto",
        help="how weights are held; int8 and fp8 are for the target, and its draft then is auto",
    )
    parser.add_argument(
        "--max-nodes",
        type=positive_int,
        metavar="N",
        default=64,
        help="most guesses in a tree and in a step",
    )
    parser.add_argument(
        "--kv-memory-mib",
        type=positive_int,
        metavar="N",
        default=KV_MEMORY_MIB,
        help="memory for the target's keys and values, in MiB",
    )
    parser.add_argument(
        "--draft-kv-memory-mib",
        type=positive_int,
        metavar="N",
        help=f"the same for the draft model's; {KV_MEMORY_MIB} if left out",
    )
    add_suffix_store_flag(parser)
    add_speculation_flag(parser, default="auto")


def add_suffix_store_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suffix-store",
        type=number_in(_COUNT),
        metavar="TOKENS",
        default=0,
        help="of finished requests, what is kept for guesses in later ones of the same API key; "
        "0: nothing",
    )


def add_speculation_flag(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--speculation",
        choices=[mode.name.lower() for mode in Speculation],
        default=default,
        help="where guesses may come from; the text is the same with each",
    )


def add_access_flags(parser: argparse.ArgumentParser) -> None:
    """Who may send requests to a gateway, and how many."""
    parser.add_argument(
        "--api-keys",
        metavar="FILE",
        type=Path,
        help="calls have to show one of these keys: one per line; lines that begin "
        "with # are comments",
    )
    parser.add_argument(
        "--rate",
        metavar="N/SECONDS",
        type=rate_limit,
        help="at most N requests of one key begin in so many seconds",
    )


def number_in(allowed: Range) -> Callable[[str], Any]:
    """How argparse reads a number: anything else is refused with what is allowed."""

    def read(text: str) -> Any:
        try:
            value = int(text) if allowed.whole else float(text)
            allowed.read("", value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text}") from None
        return value

    return read


def positive_int(text: str) -> int:
    value: int = number_in(_POSITIVE)(text)
    return value


def port_number(text: str) -> int:
    value: int = number_in(_PORT)(text)
    return value


def address_list(text: str) -> tuple[str, ...]:
    """How argparse reads addresses with commas between them."""
    addresses = tuple(text.split(","))
    if not all(addresses) or len(set(addresses)) < len(addresses):
        allowed = "HOST:PORT or unix:PATH, several with commas between them, none twice"
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
    return addresses


def host_and_port(text: str) -> str:
    """How argparse reads an address of TCP."""
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, not {text!r}")
    port_number(port)
    return text


def rate_limit(text: str) -> RateLimit:
    """How argparse reads ``N/SECONDS``."""
    count, _, seconds = text.partition("/")
    try:
        return RateLimit(positive_int(count), number_in(_PERIOD)(seconds))
    except argparse.ArgumentTypeError:
        allowed = f"N/SECONDS, N {_POSITIVE} and SECONDS {_PERIOD}"
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text}") from None


def read_speculation(name: str, draft: str, model: str) -> Speculation:
    """Refuses a mode that the other flags make impossible."""
    mode = Speculation[name.upper()]
    if mode is Speculation.MODEL and not wants_draft(draft, model):
        raise InvalidField("--draft", f"{_A_DRAFT} with --speculation model")
    return mode


def read_draft_kv_memory(mib: int | None, draft: str, model: str) -> int:
    """MiB for the draft model's keys and values; refuses what no model would use."""
    if mib is not None and not wants_draft(draft, model):
        raise InvalidField("--draft-kv-memory-mib", "left out without a draft model (--draft)")
    return KV_MEMORY_MIB if mib is None else mib


def find_model(name: str, option: str = "--model") -> Path:
    """The directory of a model that was named after ``option``."""
    try:
        return resolve_model(name, option)
    except ModelError as error:
        raise CommandError(str(error)) from error


def find_draft(
    name: str, model: str, option: str = "--draft", model_option: str = "--model"
) -> Path | None:
    """The draft model of ``model``; both as on the command line, after these options."""
    try:
        return resolve_draft(name, model, option, model_option)
    except ModelError as error:
        raise CommandError(str(error)) from error


def find_models(
    model: str, draft: str, option: str = "--draft", model_option: str = "--model"
) -> tuple[Path, Path | None]:
    """Both directories; one that is wrong is told before a known model is fetched for minutes."""
    options = option, model_option
    if draft in KNOWN_MODELS or draft == "none":
        target = find_model(model, model_option)
        return target, find_draft(draft, model, *options)
    found = find_draft(draft, model, *options)
    return find_model(model, model_option), found
