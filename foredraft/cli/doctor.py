"""``foredraft doctor``: what this machine has, one fact a line."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from foredraft.cli.options import DEFAULT_GRPC_PORT, Subparsers, add_command
from foredraft.config import FP8_CAPABILITY, cache_directory, usable_cores
from foredraft.models.catalog import KNOWN_MODELS
from foredraft.models.resolve import converted_path
from foredraft.supervisor.address import claim_port

_NEEDED = ("grpcio", "protobuf", "tokenizers")
_NEEDED_BY_WORKERS = ("torch", "transformers", "safetensors", "gguf")
_OPTIONAL = ("llvmlite", "triton")


@dataclass(frozen=True, slots=True)
class Fact:
    """``note`` is worth knowing, ``missing`` must be mended."""

    state: Literal["ok", "note", "missing"]
    name: str
    value: str


def add_parser(subparsers: Subparsers) -> None:
    add_command(
        subparsers, "doctor", "check this machine; exit code 1 if something is missing", run
    )


def run(_args: argparse.Namespace) -> int:
    facts = list(collect_facts())
    for fact in facts:
        print(f"{fact.state:<8} {fact.name:<14} {fact.value}")
    return int(any(fact.state == "missing" for fact in facts))


def collect_facts() -> Iterator[Fact]:
    yield _python()
    for name in _NEEDED:
        yield _package(name, "pip install foredraft")
    for name in _NEEDED_BY_WORKERS:
        yield _package(name, "pip install 'foredraft[worker]'")
    for name in _OPTIONAL:
        yield _optional_package(name)
    yield Fact("ok", "cores", str(usable_cores()))
    yield Fact("ok", "memory", f"{_memory_bytes() / 2**30:.1f} GiB")
    yield _gpu()
    yield _cache()
    yield from _models()
    yield _port(DEFAULT_GRPC_PORT)


def _python() -> Fact:
    supported = (3, 11) <= sys.version_info < (3, 13)
    return Fact("ok" if supported else "missing", "python", platform.python_version())


def _package(name: str, remedy: str) -> Fact:
    version = _version(name)
    if version is None:
        return Fact("missing", name, f"not installed: {remedy}")
    return Fact("ok", name, version)


def _optional_package(name: str) -> Fact:
    version = _version(name)
    return Fact("note", name, "not installed") if version is None else Fact("ok", name, version)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu() -> Fact:
    if importlib.util.find_spec("torch") is None:
        return Fact("note", "gpu", "unknown without torch")
    import torch

    if not torch.cuda.is_available():
        return Fact("note", "gpu", "none: models run on the CPU")
    major, minor = torch.cuda.get_device_capability(0)
    able = "" if (major, minor) >= FP8_CAPABILITY else ", too old for --dtype fp8"
    name = torch.cuda.get_device_name(0)
    return Fact("ok", "gpu", f"{name}, compute capability {major}.{minor}{able}")


def _cache() -> Fact:
    directory = cache_directory()
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Fact("missing", "cache", f"{directory} cannot be written; set FOREDRAFT_CACHE")
    return Fact("ok", "cache", str(directory))


def _models() -> Iterator[Fact]:
    for model in KNOWN_MODELS.values():
        directory = converted_path(model)
        if directory.is_dir():
            yield Fact("ok", "model", f"{model.model_id} in {directory}")
        else:
            yield Fact("note", "model", f"{model.model_id} is fetched when it is first used")


def _port(port: int) -> Fact:
    try:
        claim_port("127.0.0.1", port)
    except OSError:
        return Fact("note", "port", f"{port} is in use: choose another with --grpc-port")
    return Fact("ok", "port", f"{port} is free")
