"""``foredraft serve draft|verify|gateway``: one of the three processes, every setting a flag."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from foredraft.cli.fake import add_fake_draft_flag, add_fake_target_flag
from foredraft.cli.faults import CommandError
from foredraft.cli.logs import add_log_level_flag, configure_logging
from foredraft.cli.options import (
    Subparsers,
    add_access_flags,
    add_command,
    add_speculation_flag,
    add_suffix_store_flag,
    address_list,
    find_model,
    find_models,
    host_and_port,
    number_in,
    positive_int,
)
from foredraft.cli.tracing import add_trace_file_flag, tracing_config
from foredraft.config import (
    DTYPES,
    FP8,
    FP8_DEPTH,
    FP8_NODES,
    PREFIX_SHARE,
    REQUEST_SECONDS,
    RESUME_SECONDS,
    TARGET_DTYPES,
    DraftConfig,
    EngineConfig,
    GatewayConfig,
    SettingError,
    VerifyConfig,
)
from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import InvalidField, Range, Schedule, Speculation

logger = logging.getLogger(__name__)

_TARGET = "--target"
_SHARE = Range(0.0, 1.0, whole=False)
_WAIT = Range(0.0, 86_400.0, whole=False)
_TIME_LIMIT = Range(0.0, 86_400.0, whole=False, open_low=True)
_WORKER_PACKAGES = {"torch", "transformers", "safetensors", "numpy"}


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "serve", "run one of the three processes", _run)
    roles = parser.add_subparsers(title="processes", metavar="PROCESS", required=True)
    _add_verify(roles)
    _add_draft(roles)
    _add_gateway(roles)


def _add_verify(roles: Subparsers) -> None:
    parser = _add_role(roles, "verify", "the target model", _verify_config)
    _add_listen(parser)
    _add_lane(parser)
    parser.add_argument("--model", metavar="DIR|ID", default=DEFAULT_MODEL, help="the target")
    _add_engine_flags(parser, TARGET_DTYPES)
    add_fake_target_flag(parser)
    parser.add_argument(
        "--prefix-share",
        type=number_in(_SHARE),
        metavar="X",
        default=PREFIX_SHARE,
        help="of the memory, what prompts of finished requests may hold to be reused",
    )
    _add_limits(parser, VerifyConfig, nodes="most guesses in a tree and in a step")


def _add_draft(roles: Subparsers) -> None:
    parser = _add_role(roles, "draft", "the guesses", _draft_config)
    _add_listen(parser)
    _add_lane(parser)
    parser.add_argument(_TARGET, metavar="DIR|ID", default=DEFAULT_MODEL, help="guess for this")
    parser.add_argument(
        "--model",
        metavar="DIR|ID|none|auto",
        default="auto",
        help="the draft model; auto: the one that is shipped for the target, if there is one; "
        "none: the suffix cache alone",
    )
    _add_engine_flags(parser, DTYPES)
    add_fake_draft_flag(parser)
    add_suffix_store_flag(parser)
    _add_limits(parser, DraftConfig, nodes="most guesses in a tree")


def _add_gateway(roles: Subparsers) -> None:
    parser = _add_role(roles, "gateway", "the public door", _gateway_config)
    parser.add_argument("--grpc-listen", metavar="HOST:PORT", required=True, help="listen here")
    parser.add_argument(
        "--http-listen",
        metavar="HOST:PORT",
        type=host_and_port,
        help="answer OpenAI's protocol here, too",
    )
    parser.add_argument(
        "--model", metavar="DIR|ID", default=DEFAULT_MODEL, help="whose tokenizer to use"
    )
    parser.add_argument(
        "--verify", metavar="A,B", type=address_list, required=True, help="the verify services"
    )
    parser.add_argument(
        "--draft", metavar="A,B", type=address_list, default=(), help="the draft services, if any"
    )
    add_speculation_flag(parser, default="auto")
    _add_counts(parser, GatewayConfig, {"max_nodes": "most guesses in a tree and in a step"})
    _add_counts(parser, GatewayConfig, {"max_hold_us": "longest wait of a step for guesses"})
    parser.add_argument(
        "--resume-seconds",
        type=number_in(_WAIT),
        metavar="S",
        default=RESUME_SECONDS,
        help="how long a request whose verify service was lost waits for another; 0 ends it",
    )
    parser.add_argument(
        "--request-seconds",
        type=number_in(_TIME_LIMIT),
        metavar="S",
        default=REQUEST_SECONDS,
        help="longest time that an answer may take",
    )
    add_access_flags(parser)
    parser.add_argument("--schedule", choices=[s.name.lower() for s in Schedule], default="auto")


def _add_role(
    roles: Subparsers, name: str, text: str, make_config: Callable[[argparse.Namespace], Any]
) -> argparse.ArgumentParser:
    parser = add_command(roles, name, text, _run)
    parser.set_defaults(role=name, make_config=make_config)
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="end when standard input is closed"
    )
    add_log_level_flag(parser)
    add_trace_file_flag(parser)
    return parser


def _add_listen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", metavar="ADDRESS", required=True, help="HOST:PORT or unix:PATH")


def _add_lane(parser: argparse.ArgumentParser) -> None:
    text = "a socket on this host by which draft and verify reach each other beside the gateway"
    parser.add_argument("--lane", metavar="PATH", type=Path, help=text)


def _add_engine_flags(parser: argparse.ArgumentParser, dtypes: Sequence[str]) -> None:
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="how weights are held")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    counts = {"threads": "computing threads", "kv_memory_mib": "memory for keys and values"}
    _add_counts(parser, EngineConfig, counts)


def _add_limits(parser: argparse.ArgumentParser, config: type, nodes: str) -> None:
    counts = {
        "max_sequences": "most sequences at once",
        "max_nodes": nodes,
        "max_depth": "longest path of guesses",
    }
    _add_counts(parser, config, counts)


def _add_counts(parser: argparse.ArgumentParser, config: type, texts: dict[str, str]) -> None:
    """One flag per whole-number field of ``config``, with the field's default."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name, text in texts.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=positive_int, metavar="N", default=defaults[name], help=text)


def _verify_config(args: argparse.Namespace) -> VerifyConfig:
    if args.dtype == FP8 and args.max_depth > FP8_DEPTH:
        raise InvalidField("--max-depth", f"at most {FP8_DEPTH} with --dtype fp8")
    if args.dtype == FP8 and args.max_nodes > FP8_NODES:
        raise InvalidField("--max-nodes", f"at most {FP8_NODES} with --dtype fp8")
    return VerifyConfig(
        listen=args.listen,
        engine=_engine_config(args, find_model(args.model)),
        prefix_share=args.prefix_share,
        max_sequences=args.max_sequences,
        max_nodes=args.max_nodes,
        max_depth=args.max_depth,
        lane=args.lane,
    )


def _draft_config(args: argparse.Namespace) -> DraftConfig:
    target, engine = _draft_models(args)
    return DraftConfig(
        listen=args.listen,
        target=target,
        engine=engine,
        max_sequences=args.max_sequences,
        max_nodes=args.max_nodes,
        max_depth=args.max_depth,
        suffix_store=args.suffix_store,
        lane=args.lane,
    )


def _gateway_config(args: argparse.Namespace) -> GatewayConfig:
    return GatewayConfig(
        grpc_listen=args.grpc_listen,
        model=find_model(args.model),
        verify=args.verify,
        draft=args.draft,
        speculation=Speculation[args.speculation.upper()],
        max_nodes=args.max_nodes,
        max_hold_us=args.max_hold_us,
        schedule=Schedule[args.schedule.upper()],
        resume_seconds=args.resume_seconds,
        request_seconds=args.request_seconds,
        api_keys=args.api_keys,
        rate=args.rate,
        http_listen=args.http_listen,
    )


def _draft_models(args: argparse.Namespace) -> tuple[Path, EngineConfig | None]:
    """The target, and what guesses for it.

    A stand-in speaks the target's language, and so needs no directory of its own.
    """
    if args.fake_engine is not None:
        target = find_model(args.target, _TARGET)
        return target, _engine_config(args, target)
    target, draft = find_models(args.target, args.model, "--model", _TARGET)
    return target, None if draft is None else _engine_config(args, draft)


def _engine_config(args: argparse.Namespace, model: Path) -> EngineConfig:
    return EngineConfig(
        model=model,
        fake=args.fake_engine,
        dtype=args.dtype,
        device=args.device,
        threads=args.threads,
        kv_memory_mib=args.kv_memory_mib,
    )


def _run(args: argparse.Namespace) -> int:
    from foredraft.telemetry.setup import tracing

    configure_logging(args.role, args.log_level)
    if args.exit_with_parent:
        from foredraft.supervisor.child import end_with_parent

        end_with_parent()
    spans = tracing_config(args.trace_file)
    config = args.make_config(args)
    serve = _load_serve(args.role)
    try:
        with tracing(args.role, spans):
            asyncio.run(serve(config))
    except (UnsupportedModel, SettingError) as error:
        raise CommandError(f"{args.role} failed: {error}") from error
    except Exception as error:
        logger.exception("the process ends")
        raise CommandError(f"{args.role} failed: {error}") from error
    return 0


def _load_serve(role: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    package = "gateway" if role == "gateway" else f"{role}_service"
    try:
        module = importlib.import_module(f"{package}.server")
    except ModuleNotFoundError as error:
        if error.name not in _WORKER_PACKAGES:
            raise
        raise CommandError(f"{role} needs {error.name}: pip install 'foredraft[worker]'") from error
    serve: Callable[[Any], Coroutine[Any, Any, None]] = module.serve
    return serve
