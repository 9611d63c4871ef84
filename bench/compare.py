"""``foredraft bench compare``: whole answers, one after another, with and without guesses.

All systems answer the same prompts on the same machine, interleaved prompt by prompt, each
prompt starting with another system. Speeds are delivered tokens per second of a request,
prompt included, and of its decoding alone (from the first token on).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.peer import PEERS, PeerAnswer
from bench.report import check_output, write_report
from bench.values import names_of, two_or_more
from foredraft.aio import AsyncClient
from foredraft.chat_template import ChatTemplate
from foredraft.cli.faults import CommandError
from foredraft.cli.options import (
    DRAFT_NAMES,
    find_models,
    positive_int,
    read_speculation,
)
from foredraft.config import TARGET_DTYPES, StackConfig
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import InvalidField, SamplingParams, Speculation, check_params
from foredraft.prompt_file import Chat, read_prompts
from foredraft.request import ChatMessage
from foredraft.supervisor.stack import StackError, running_stack
from gateway.tokenizer import Tokenizer

PLAIN = "plain"
_MODES = tuple(mode.name.lower() for mode in Speculation)
_PEER_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one system."""

    system: str
    prompt: int
    tokens: int
    seconds: float
    first_seconds: float
    steps: int
    token_ids: list[int]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def decode_speed(self) -> float:
        return (self.tokens - 1) / (self.seconds - self.first_seconds)


System = Callable[[int, Sequence[int]], Awaitable[Sample]]


def main(arguments: list[str]) -> int:
    """Measure, print and write.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: a model cannot be had, the stack ended, or there is nothing to compare.
    """
    args = _parser().parse_args(arguments)
    params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature)
    check_params(params)
    for mode in args.speculation:
        read_speculation(mode, args.draft, args.model)
    if ("llama.cpp" in args.peer) != (args.peer_gguf is not None):
        allowed = "the same model as a GGUF file with --peer llama.cpp, and left out without"
        raise InvalidField("--peer-gguf", allowed)
    check_output(args.json)
    chats = read_prompts(args.prompts, args.limit, option="--prompts")
    model, draft = find_models(args.model, args.draft)
    config = StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        model=model,
        draft=draft,
        dtype=args.dtype,
        prefix_share=0.0,  # every system computes the whole prompt
        log_level="error",
    )
    content = _summary(asyncio.run(_measure(config, chats, args)), args)
    _show(content)
    write_report(args.json, "compare", arguments, content)
    return 0


async def _measure(
    config: StackConfig, chats: list[Chat], args: argparse.Namespace
) -> list[Sample]:
    prompts = await _prompt_ids(config.model, chats)
    try:
        async with running_stack(config) as stack:
            await stack.ready()
            async with AsyncClient(stack.local_address) as client:
                systems = _own_systems(client, args) | _peer_systems(config.model, args)
                return await _interleave(systems, prompts)
    except StackError as error:
        raise CommandError(str(error)) from error


async def _interleave(systems: dict[str, System], prompts: list[Sequence[int]]) -> list[Sample]:
    names = list(systems)
    for name in names:
        await systems[name](-1, prompts[0])  # warms caches and threads; not counted
    samples = []
    for number, prompt in enumerate(prompts):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            samples.append(await systems[name](number, prompt))
        sys.stderr.write(f"\r{number + 1}/{len(prompts)} prompts")
    sys.stderr.write("\n")
    return samples


def _own_systems(client: AsyncClient, args: argparse.Namespace) -> dict[str, System]:
    def system(name: str, speculation: str) -> System:
        async def answer(number: int, prompt: Sequence[int]) -> Sample:
            started = time.perf_counter()
            first = 0.0
            async with client.stream(
                list(prompt),
                max_tokens=args.max_tokens,
                temperature=args.temperature,
                seed=1,
                speculation=speculation,
            ) as stream:
                async for delta in stream:
                    if delta.token_ids and not first:
                        first = time.perf_counter() - started
                result = stream.result
            seconds = time.perf_counter() - started
            count, steps = len(result.token_ids), result.stats.steps
            return Sample(name, number, count, seconds, first, steps, result.token_ids)

        return answer

    return {PLAIN: system(PLAIN, "off")} | {mode: system(mode, mode) for mode in args.speculation}


def _peer_systems(model: Path, args: argparse.Namespace) -> dict[str, System]:
    systems: dict[str, System] = {}
    if "transformers" in args.peer:
        from bench.transformers_peer import TransformersPeer

        name = f"transformers {args.peer_dtype}"
        transformers = TransformersPeer(model, args.peer_dtype)
        for label, lookup in ((name, False), (f"{name} lookup", True)):
            systems[label] = _peer(label, partial(transformers.generate, lookup=lookup), args)
    if "llama.cpp" in args.peer:
        from bench.llama_cpp_peer import LlamaCppPeer

        label = f"llama.cpp {args.peer_gguf.stem.rpartition('.')[2]}"
        systems[label] = _peer(label, LlamaCppPeer(args.peer_gguf).generate, args)
    return systems


def _peer(
    name: str, generate: Callable[[Sequence[int], int], PeerAnswer], args: argparse.Namespace
) -> System:
    async def answer(number: int, prompt: Sequence[int]) -> Sample:
        found = generate(prompt, args.max_tokens)
        ids = found.token_ids
        return Sample(name, number, len(ids), found.seconds, found.first_seconds, 0, ids)

    return answer


async def _prompt_ids(model: Path, chats: list[Chat]) -> list[Sequence[int]]:
    template, tokenizer = ChatTemplate(model), Tokenizer(model)
    texts = [template.render(ChatMessage(**message) for message in chat) for chat in chats]
    return [await tokenizer.encode(text) for text in texts]


def _summary(samples: list[Sample], args: argparse.Namespace) -> dict[str, Any]:
    by_system: dict[str, dict[int, Sample]] = {}
    for sample in samples:
        by_system.setdefault(sample.system, {})[sample.prompt] = sample
    plain = by_system[PLAIN]
    usable = [n for n in plain if all(by[n].tokens > 1 for by in by_system.values())]
    if not usable:
        raise CommandError("no prompt got two tokens or more from every system to compare")
    return {
        "prompts": args.prompts.name,
        "answers": len(usable),
        "max_tokens": args.max_tokens,
        "systems": {name: _system_row(by, plain, usable) for name, by in by_system.items()},
        "samples": [
            {key: value for key, value in asdict(sample).items() if key != "token_ids"}
            for sample in samples
        ],
    }


def _system_row(
    mine: dict[int, Sample], plain: dict[int, Sample], usable: list[int]
) -> dict[str, float]:
    def median(value: Callable[[int], float]) -> float:
        return round(statistics.median(value(n) for n in usable), 3)

    steps = sum(mine[n].steps for n in usable)
    return {
        "tokens_per_s": median(lambda n: mine[n].speed),
        "decode_tokens_per_s": median(lambda n: mine[n].decode_speed),
        "ratio_to_plain": median(lambda n: mine[n].speed / plain[n].speed),
        "decode_ratio_to_plain": median(lambda n: mine[n].decode_speed / plain[n].decode_speed),
        "total_ratio_to_plain": round(_total_speed(mine, usable) / _total_speed(plain, usable), 3),
        "tokens_per_step": round(sum(mine[n].tokens for n in usable) / steps, 3) if steps else 0.0,
        "same_ids_as_plain": sum(mine[n].token_ids == plain[n].token_ids for n in usable),
    }


def _total_speed(samples: dict[int, Sample], usable: list[int]) -> float:
    """Tokens per second of decoding over all answers together."""
    seconds = sum(samples[n].seconds - samples[n].first_seconds for n in usable)
    return sum(samples[n].tokens - 1 for n in usable) / seconds


def _show(content: dict[str, Any]) -> None:
    columns = list(content["systems"][PLAIN])
    lines = [f"{content['answers']} answers of up to {content['max_tokens']} tokens, medians"]
    lines.append(" ".join(["system".ljust(28), *columns]))
    for name, row in content["systems"].items():
        cells = [str(row[column]).rjust(len(column)) for column in columns]
        lines.append(" ".join([name.ljust(28), *cells]))
    sys.stdout.write("\n".join(lines) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--limit", type=positive_int, default=20, metavar="N", help="prompts (default 20)"
    )
    parser.add_argument("--max-tokens", type=two_or_more, default=64, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="DIR|ID")
    parser.add_argument("--draft", default="none", metavar=DRAFT_NAMES)
    parser.add_argument("--dtype", choices=TARGET_DTYPES, default="auto")
    parser.add_argument(
        "--speculation",
        type=names_of(_MODES),
        default="suffix",
        metavar="MODES",
        help=f"modes beside plain, with commas: {', '.join(_MODES)}",
    )
    parser.add_argument(
        "--peer",
        type=names_of(PEERS),
        default=(),
        metavar="NAMES",
        help=f"other systems to measure, with commas: {', '.join(PEERS)}",
    )
    parser.add_argument("--peer-dtype", choices=_PEER_DTYPES, default="bfloat16")
    parser.add_argument(
        "--peer-gguf", type=Path, metavar="FILE", help="the same model, for llama.cpp"
    )
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
