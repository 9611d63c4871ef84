"""The command line and environment of each of the three processes."""

from __future__ import annotations

import sys
from pathlib import Path

from foredraft.config import DTYPES, StackConfig, usable_cores, worker_environment
from foredraft.supervisor.address import reachable
from foredraft.supervisor.child import Child

_DRAFT_THREADS = 1  # a small model gains little from more, and takes turns with the target


def make_children(
    config: StackConfig, grpc_address: str, directory: Path, http_address: str | None = None
) -> list[Child]:
    """Draft, verify and gateway; the workers listen on sockets in the private ``directory``."""
    verify, draft = f"unix:{directory}/verify.sock", f"unix:{directory}/draft.sock"
    threads = usable_cores()
    lane = ["--lane", f"{directory}/lane.sock"]
    common = ["--max-nodes", str(config.max_nodes), "--log-level", config.log_level]
    if config.trace_file is not None:
        common += ["--trace-file", str(config.trace_file)]
    draft_arguments = ["--listen", draft, *lane, "--target", str(config.model), *common]
    if config.suffix_store:
        draft_arguments += ["--suffix-store", str(config.suffix_store)]
    if config.draft is None:
        draft_arguments += ["--model", "none"]
    else:
        dtype = config.dtype if config.dtype in DTYPES else "auto"
        draft_arguments += ["--model", str(config.draft), "--dtype", dtype]
        draft_arguments += ["--kv-memory-mib", str(config.draft_kv_memory_mib)]
    verify_arguments = ["--listen", verify, *lane, "--model", str(config.model), *common]
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
        _child(
            "draft", [*draft_arguments, "--threads", str(_DRAFT_THREADS)], _DRAFT_THREADS, draft
        ),
        _child("verify", [*verify_arguments, "--threads", str(threads)], threads, verify),
        _child("gateway", gateway_arguments, 1, reachable(grpc_address)),
    ]


def _child(role: str, arguments: list[str], threads: int, address: str) -> Child:
    command = [sys.executable, "-m", "foredraft", "serve", role, "--exit-with-parent", *arguments]
    return Child(role, command, worker_environment(threads), address)
