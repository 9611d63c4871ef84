"""The same prompts through real services: to record answers, and to set speeds beside replays."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.cells import Cell
from bench.recorded import AnswerFile, Place, Question, Recorded
from foredraft.aio import AsyncClient
from foredraft.cli.faults import CommandError
from foredraft.config import StackConfig
from foredraft.errors import ForedraftError
from foredraft.params import FinishReason, Speculation
from foredraft.results import Result
from foredraft.supervisor.stack import StackError, running_stack

_DRAFTER_SECONDS = 60.0
_EASY = [5, 6, 7] * 6


@dataclass(frozen=True, slots=True)
class Played:
    """What one way of guessing came to on real services.

    seconds: of all requests' decoding, prompts included. same: answers with the recorded ids.
    """

    cell: Cell
    answers: int
    tokens: int
    steps: int
    verified: int
    seconds: float
    same: int

    def content(self) -> dict[str, Any]:
        """As a report shows it."""
        return {
            "draft": self.cell.draft.name,
            "nodes": self.cell.nodes,
            "answers": self.answers,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens / self.steps, 3) if self.steps else 0.0,
            "verified_per_step": round(self.verified / self.steps, 2) if self.steps else 0.0,
            "tokens_per_s": round(self.tokens / self.seconds, 2),
            "same_ids": self.same,
        }


async def record(
    config: StackConfig, questions: Sequence[Question], file: AnswerFile, at_once: int
) -> None:
    """Ask all, so many at once, without guesses; write every answer down as it comes.

    Raises:
        CommandError: the stack ended, or refuses a question.
    """
    plain = replace(config, speculation=Speculation.OFF, draft=None)
    places = asyncio.Semaphore(at_once)
    with file.open() as out:
        async with _client(plain) as client, asyncio.TaskGroup() as tasks:

            async def ask(question: Question) -> None:
                async with places:
                    result = await _generate(client, question, Speculation.OFF)
                finish = FinishReason[result.finish_reason.upper()]
                file.append(out, Recorded(question, tuple(result.token_ids), finish))
                sys.stderr.write(".")
                sys.stderr.flush()

            for question in questions:
                tasks.create_task(ask(question))
    sys.stderr.write("\n")


async def play_live(
    config: StackConfig, cells: Sequence[Cell], answers: Mapping[Place, Sequence[Recorded]]
) -> list[tuple[Place, Played]]:
    """Every cell on services with its budget, one request after another.

    Raises:
        CommandError: the stack ended, or its drafter never came.
    """
    found = []
    for nodes in dict.fromkeys(cell.nodes for cell in cells):
        async with _client(replace(config, max_nodes=nodes)) as client:
            for cell in (cell for cell in cells if cell.nodes == nodes):
                await _wait_for_guesses(client, cell)
                for place, mine in answers.items():
                    found.append((place, await _play(client, cell, mine)))
    return found


async def _play(client: AsyncClient, cell: Cell, answers: Sequence[Recorded]) -> Played:
    tokens = steps = verified = same = 0
    started = time.perf_counter()
    for answer in answers:
        result = await _generate(client, answer.question, cell.draft.speculation)
        tokens += len(result.token_ids)
        steps += result.stats.steps
        verified += result.stats.verified_nodes
        same += tuple(result.token_ids) == answer.tokens
    seconds = time.perf_counter() - started
    return Played(cell, len(answers), tokens, steps, verified, seconds, same)


async def _wait_for_guesses(client: AsyncClient, cell: Cell) -> None:
    """Until the drafter is up; a text that says the same again is easy to guess."""
    speculation = cell.draft.speculation.name.lower()
    try:
        async with asyncio.timeout(_DRAFTER_SECONDS):
            while True:
                result = await client.generate(
                    _EASY, max_tokens=len(_EASY), ignore_eos=True, speculation=speculation
                )
                if result.stats.verified_nodes:
                    return
    except TimeoutError:
        raise CommandError(f"no guesses came for {cell.draft.name}") from None
    except ForedraftError as error:
        raise CommandError(str(error)) from error


async def _generate(client: AsyncClient, question: Question, speculation: Speculation) -> Result:
    try:
        return await client.generate(
            list(question.prompt),
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            seed=question.seed,
            speculation=speculation.name.lower(),
        )
    except ForedraftError as error:
        raise CommandError(f"row {question.row + 1} of {question.group}: {error}") from error


@contextlib.asynccontextmanager
async def _client(config: StackConfig) -> AsyncIterator[AsyncClient]:
    try:
        async with running_stack(config) as stack:
            await stack.ready()
            async with AsyncClient(stack.local_address) as client:
                yield client
    except StackError as error:
        raise CommandError(str(error)) from error
