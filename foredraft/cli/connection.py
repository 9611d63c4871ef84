"""How a command reaches a stack that runs already: its address, and the key that it may want."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from foredraft.call import key_metadata
from foredraft.cli.faults import CommandError
from foredraft.cli.options import DEFAULT_GRPC_PORT
from foredraft.config import API_KEY_VARIABLE, read_api_key
from foredraft.params import InvalidField


@dataclass(frozen=True, slots=True)
class Connection:
    address: str
    api_key: str | None = field(default=None, repr=False)


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """No flag takes the key itself: everybody on the machine can read command lines."""
    parser.add_argument(
        "--address", metavar="HOST:PORT", default=f"127.0.0.1:{DEFAULT_GRPC_PORT}", help="gateway"
    )
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help="show the gateway the first key in this file; without it, that in the variable "
        f"{API_KEY_VARIABLE}",
    )


def read_connection(args: argparse.Namespace) -> Connection:
    """No error holds the key.

    Raises:
        CommandError: the file cannot be read or holds no key.
        InvalidField: what is there cannot be a key.
    """
    file: Path | None = args.api_key_file
    key = read_api_key() if file is None else _first_key(file)
    try:
        key_metadata(key)
    except InvalidField as error:
        source = API_KEY_VARIABLE if file is None else f"--api-key-file {file}"
        raise InvalidField(source, error.allowed) from None
    return Connection(args.address, key)


def _first_key(file: Path) -> str:
    """Written as in the file that a gateway takes its keys from."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        raise CommandError(f"--api-key-file {file}: a key is ASCII text") from None
    except OSError as error:
        raise CommandError(f"--api-key-file {file}: {error.strerror}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise CommandError(f"--api-key-file {file} holds no key")
    return keys[0]
