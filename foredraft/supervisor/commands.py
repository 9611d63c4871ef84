"""The command line and environment of each of the three processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from foredraft.config import FP8, StackConfig, usable_cores, worker_environment
from foredraft.supervisor.address import reachable
from foredraft.supervisor.child import Child


@dataclass(frozen=True, slots=True)
class Threads:
    """Computing threads of the workers: two processes on one core stall each other's steps."""

    verify: int
    draft: int


def share_cores(cores: int, drafting_model: bool) -> Threads:
    """All cores for the target, or all but one if a draft model runs beside it."""
    return Threads(verify=max(1, cores - 1) if drafting_model else cores, draft=1)


def make_children(
    config: StackConfig, grpc_address: str, directory: Path, http_address: str | None = None
) -> list[Child]:
    """Draft, verify and gateway; the workers listen on sockets in the private ``directory``."""
    verify, draft = f"unix:{directory}/verify.sock", f"unix:{directory}/draft.sock"
    threads = share_cores(usable_cores(), config.draft is not None)
    common = ["--max-nodes", str(config.max_nodes), "--log-level", config.log_level]
    if config.trace_file is not None:
        common += ["--trace-file", str(config.trace_file)]
    draft_arguments = ["--listen", draft, "--target", str(config.model), *common]
    if config.suffix_store:
        draft_arguments += ["--suffix-store", str(config.suffix_store)]
    if config.draft is not None:
        dtype = "auto" if config.dtype == FP8 else config.dtype
        draft_arguments += ["--model", str(config.draft), "--dtype", dtype]
        draft_arguments += ["--kv-memory-mib", str(config.draft_kv_memory_mib)]
    verify_arguments = ["--listen", verify, "--model", str(config.model), *common]
    verify_arguments += ["--dtype", config.dtype, "--prefix-share", str(config.prefix_share)]
    verify_arguments += ["--kv-memory-mib", str(config.kv_memory_mib)]
    if config.fake_target is not None and config.fake_draft is not None:
        verify_arguments += ["--fake-engine", str(config.fake_target.step_ms)]
        fake = f"{config.fake_draft.step_ms},{config.fake_draft.acceptance}"
        draft_arguments += ["--fake-engine", fake]
    gateway_arguments = ["--grpc-listen", grpc_address, "--model", str(config.model), *common]
    gateway_arguments += ["--verify", verify, "--draft", draft]
    if http_address is not None:
        gateway_arguments += ["--http-listen", http_address]
    gateway_arguments += ["--speculation", config.speculation.name.lower()]
    gateway_arguments += ["--schedule", config.schedule.name.lower()]
    if config.api_keys is not None:
        gateway_arguments += ["--api-keys", str(config.api_keys)]
    if config.rate is not None:
        gateway_arguments += ["--rate", str(config.rate)]
    if not config.restart:
        gateway_arguments += ["--resume-seconds", "0"]  # nobody starts a lost worker again
    return [
        _child("draft", [*draft_arguments, "--threads", str(threads.draft)], threads.draft, draft),
        _child(
            "verify", [*verify_arguments, "--threads", str(threads.verify)], threads.verify, verify
        ),
        _child("gateway", gateway_arguments, 1, reachable(grpc_address)),
    ]


def _child(role: str, arguments: list[str], threads: int, address: str) -> Child:
    command = [sys.executable, "-m", "foredraft", "serve", role, "--exit-with-parent", *arguments]
    return Child(role, command, worker_environment(threads), address)
