"""Settings of every process, and the only place that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from foredraft.params import InvalidField, Schedule, Speculation

DTYPES = ("auto", "float32", "bfloat16", "float16")
INT8, FP8 = "int8", "fp8"
TARGET_DTYPES = (*DTYPES, INT8, FP8)
FP8_CAPABILITY = (8, 9)  # of a GPU, at least
FP8_DEPTH = 64  # longest path of guesses that the attention of dtype fp8 takes
FP8_NODES = 128  # largest tree of a sequence that its kernels are made for
_SPIN_COUNT = "10000"
KV_MEMORY_MIB = 1024
RESUME_SECONDS = 60.0  # a worker that is started again has loaded by then
REQUEST_SECONDS = 3600.0  # a client that never asks again must not hold memory for ever
API_KEY_VARIABLE = "FOREDRAFT_API_KEY"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class FakeEngine:
    """A stand-in for a model: every pass takes ``step_ms``.

    acceptance: how often the target chooses a fake draft's best guess; None: it is the target.
    """

    step_ms: float
    acceptance: float | None = None


class SettingError(Exception):
    """What a setting names cannot be used; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a worker holds and runs one model.

    dtype: "auto", "float32", "bfloat16" or "float16"; of a target "int8" or "fp8", too. Auto is
    bfloat16 on a GPU. On a CPU it is int8 in a target that has its weights in blocks, where kernels
    for these run, and there in a draft; else float16 weights with float32 arithmetic, or
    float32 where that product is missing.
    """

    model: Path
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 1
    kv_memory_mib: int = KV_MEMORY_MIB
    fake: FakeEngine | None = None


PREFIX_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    """What the verify service is started with.

    prefix_share: of the KV memory, what the prompts of finished sequences may hold.
    lane: where a drafter on this host may listen for a way beside the gateway; None: nowhere.
    """

    listen: str
    engine: EngineConfig
    prefix_share: float = PREFIX_SHARE
    max_sequences: int = 64
    max_nodes: int = 64
    max_depth: int = 32
    lane: Path | None = None


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """``engine`` None: suffix drafts only. ``target`` is the directory of the served model.

    suffix_store: tokens of finished requests that are kept for guesses, per tenant; 0: none.
    lane: where verify workers on this host may find it beside the gateway; None: nowhere.
    """

    listen: str
    target: Path
    engine: EngineConfig | None = None
    max_sequences: int = 64
    max_nodes: int = 64
    max_depth: int = 32
    suffix_store: int = 0
    lane: Path | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``count`` requests begin in any ``seconds``."""

    count: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds:g}"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """``verify`` and ``draft`` are gRPC addresses of workers; no ``draft``: plain decoding.

    resume_seconds: how long a request whose verify worker was lost waits for another one.
    request_seconds: how long an answer may take, whatever deadline its client has.
    api_keys: a file of keys, one of which each call has to show; None: everybody is let in.
    rate: of requests, per key; None: no limit.
    http_listen: HOST:PORT of the HTTP door; None: there is none.
    """

    grpc_listen: str
    model: Path
    verify: tuple[str, ...]
    draft: tuple[str, ...] = ()
    speculation: Speculation = Speculation.AUTO
    max_nodes: int = 64
    max_hold_us: int = 20_000
    schedule: Schedule = Schedule.AUTO
    resume_seconds: float = RESUME_SECONDS
    request_seconds: float = REQUEST_SECONDS
    api_keys: Path | None = None
    rate: RateLimit | None = None
    http_listen: str | None = None


@dataclass(frozen=True, slots=True)
class StackConfig:
    """The three processes together; port 0 means any free port, ``draft`` None no draft model.

    ``http_port`` None: no HTTP door; it listens where the gRPC door does.
    """

    grpc_host: str
    grpc_port: int
    model: Path
    draft: Path | None = None
    speculation: Speculation = Speculation.AUTO
    schedule: Schedule = Schedule.AUTO
    prefix_share: float = PREFIX_SHARE
    fake_target: FakeEngine | None = None
    fake_draft: FakeEngine | None = None
    dtype: str = "auto"
    restart: bool = True
    max_nodes: int = 64
    kv_memory_mib: int = KV_MEMORY_MIB
    draft_kv_memory_mib: int = KV_MEMORY_MIB
    suffix_store: int = 0
    http_port: int | None = None
    api_keys: Path | None = None
    rate: RateLimit | None = None
    log_level: str = "info"
    trace_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Where spans go; what else OTEL_* variables say, OpenTelemetry's own libraries read."""

    collector: bool = False
    file: Path | None = None

    @property
    def on(self) -> bool:
        return self.collector or self.file is not None


def read_tracing(file: Path | None) -> TracingConfig:
    """Tracing to a file, and to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.

    Raises:
        InvalidField: a standard variable asks for an exporter or a protocol that is not there,
            or forbids what the file asks for.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        if file is not None:
            raise InvalidField("--trace-file", "left out while OTEL_SDK_DISABLED is true")
        return TracingConfig()
    exporter = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if exporter not in ("otlp", "none"):
        raise InvalidField("OTEL_TRACES_EXPORTER", "otlp or none")
    endpoint, protocol = (
        os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
        for name in ("ENDPOINT", "PROTOCOL")
    )
    collector = bool(endpoint) and exporter == "otlp"
    if collector and protocol not in (None, "grpc"):
        raise InvalidField("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    return TracingConfig(collector, file)


def usable_cores() -> int:
    """Cores this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def worker_environment(threads: int) -> dict[str, str]:
    """The whole environment of a child process that computes with ``threads`` threads.

    OpenMP's threads wait for each other actively, for much longer than a product takes. On cores
    that are busy with something else that makes every product wait for a time slice; a short
    active wait is as quick on idle cores and several times quicker on busy ones.
    """
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": _SPIN_COUNT}


def read_api_key() -> str | None:
    """The key that a command shows the stack it talks to."""
    return os.environ.get(API_KEY_VARIABLE) or None


def cache_directory() -> Path:
    """Where converted models live: FOREDRAFT_CACHE, else the user's cache."""
    chosen = os.environ.get("FOREDRAFT_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "foredraft"
