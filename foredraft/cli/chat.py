"""``foredraft chat``: a conversation with a running stack, turn by turn."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from foredraft.cli.answer import shown
from foredraft.cli.connection import add_connection_flags, read_connection
from foredraft.cli.generate import add_sampling_flags, check_request, sampling_arguments
from foredraft.cli.options import Subparsers, add_command, add_speculation_flag
from foredraft.client import Client
from foredraft.errors import ForedraftError
from foredraft.printable import one_line

_CONNECT_SECONDS = 2.0  # a stack that is up answers at once
_MAX_TOKENS = 1024  # of an answer, unless --max-tokens says another
_HELP = (
    "/reset forgets the conversation; /exit or the end of the input leaves; Ctrl-C ends an answer"
)

Message = dict[str, str]


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "chat", "talk with a running stack", run)
    parser.epilog = _HELP
    add_connection_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before all else")
    add_sampling_flags(parser)
    add_speculation_flag(parser, default=None)


def run(args: argparse.Namespace) -> int:
    options: dict[str, Any] = {"max_tokens": _MAX_TOKENS} | sampling_arguments(args)
    if args.speculation is not None:
        options["speculation"] = args.speculation
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    check_request({"messages": system} | options)
    to = read_connection(args)
    with Client(to.address, _CONNECT_SECONDS, api_key=to.api_key) as client:
        client.models()  # a stack that is not there is told before the first question
        with contextlib.suppress(KeyboardInterrupt):
            _talk(client, system, options)
    return 0


def _talk(client: Client, system: list[Message], options: dict[str, Any]) -> None:
    if sys.stdin.isatty():
        print(_HELP)
    conversation = list(system)
    for text in _questions():
        if text == "/reset":
            conversation = list(system)
            continue
        turn = [*conversation, {"role": "user", "content": text}]
        answer = _answer(client, turn, options)
        if answer is not None:
            conversation = [*turn, {"role": "assistant", "content": answer}]


def _questions() -> Iterator[str]:
    """What the user types, until the end; empty lines ask nothing."""
    prompt = "> " if sys.stdin.isatty() else ""
    with contextlib.suppress(EOFError):
        while (text := input(prompt).strip()) != "/exit":
            if text:
                yield text


def _answer(client: Client, turn: list[Message], options: dict[str, Any]) -> str | None:
    """Print an answer as it comes; what was said of it, or None if the stack refused.

    An interrupt ends the answer, not the conversation.
    """
    said = ""
    try:
        with client.stream(messages=turn, **options) as stream, _interrupt(stream.cancel):
            for delta in stream:
                said += delta.text
                print(shown(delta.text), end="", flush=True)
        if stream.result.finish_reason == "cancelled":
            print(" …", end="")
    except ForedraftError as error:
        print(f"foredraft: {one_line(str(error))}", file=sys.stderr)
        return None
    print(flush=True)
    return said


@contextlib.contextmanager
def _interrupt(end: Callable[[], None]) -> Iterator[None]:
    """An interrupt inside the block calls ``end``.

    As an exception it could come at a place where a library can only ignore it.
    """
    before = signal.signal(signal.SIGINT, lambda *_: end())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
