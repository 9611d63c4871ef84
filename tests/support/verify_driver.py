"""A verify worker without gRPC: its real step loop in a thread, and a drafter that is a function.

The drafter answers every commit (and every opening) with complete guesses before the next step
can start, so that what a test sees does not depend on timing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from foredraft.engine.runner import Runner
from foredraft.params import FinishReason, SamplingParams, Schedule, Speculation
from foredraft.policy.cost import StepCost
from foredraft.tree.node_id import child_id, path_id, start_id
from foredraft.wire.codec.verify import Response
from foredraft.wire.messages import (
    CloseSequence,
    CloseSequences,
    Commit,
    Limits,
    NodeBatch,
    NodeGroup,
    OpenSequence,
    OpenSequences,
    SequenceError,
    SequenceErrors,
    Source,
    StepResult,
    VerifyBudget,
)
from verify_service.reservations import Reservations
from verify_service.scheduler import Scheduler
from verify_service.step_loop import Arrival, StepLoop
from verify_service.steps import Steps

Guesser = Callable[[Sequence[int]], Sequence[Sequence[int]]]  # tokens -> guessed continuations
FREE_ROWS = StepCost((1, 2), (1e6, 1e6))  # every guess pays, and is worth any wait
_WAIT_SECONDS = 60.0


def no_guesses(tokens: Sequence[int]) -> Sequence[Sequence[int]]:
    return ()


@dataclass
class Answer:
    """What came back for one sequence."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    commits: list[Commit] = field(default_factory=list)
    error: SequenceError | None = None

    @property
    def done(self) -> bool:
        return self.finish is not None or self.error is not None


def guess_group(opened: OpenSequence, tokens: Sequence[int], guesses: Guesser) -> NodeGroup:
    """Complete guesses below the newest of ``tokens`` as one group."""
    root = path_id(start_id(opened.seq_id, opened.incarnation), tokens)
    nodes: dict[int, tuple[int, int]] = {}  # id -> (parent, token)
    for guess in guesses(tokens):
        parent = root
        for token in guess:
            nodes[child_id(parent, token)] = (parent, token)
            parent = child_id(parent, token)
    return NodeGroup(
        seq_id=opened.seq_id,
        incarnation=opened.incarnation,
        root_id=root,
        complete=True,
        tokens=tuple(token for _, token in nodes.values()),
        parent_ids=tuple(parent for parent, _ in nodes.values()),
        confidences=(0.9,) * len(nodes),
        sources=(Source.SUFFIX,) * len(nodes),
    )


class VerifyDriver:
    def __init__(
        self,
        runner: Runner,
        *,
        max_nodes: int = 64,
        max_sequences: int = 64,
        max_depth: int = 32,
        make_steps: Callable[[Runner, Reservations, Limits], Steps] | None = None,
    ) -> None:
        """``make_steps``: how steps are run; by the host if None."""
        limits = Limits(max_sequences, max_nodes, max_depth, runner.kv.total_blocks)
        memory = Reservations(runner)
        self.scheduler = Scheduler(memory, runner.info, limits)
        steps = make_steps(runner, memory, limits) if make_steps else None
        self._published: queue.Queue[Response] = queue.Queue()
        self.loop = StepLoop(
            runner,
            self.scheduler,
            FREE_ROWS,
            lambda _, response: self._published.put(response),
            steps=steps,
        )
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._opened: dict[int, OpenSequence] = {}
        self._guessers: dict[int, Guesser] = {}
        self.answers: dict[int, Answer] = {}
        self.send(VerifyBudget(max_nodes, 2_000_000, drafting=True, schedule=Schedule.SERIAL))

    def __enter__(self) -> VerifyDriver:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loop.stop()
        self._thread.join(_WAIT_SECONDS)
        assert not self._thread.is_alive()
        self.scheduler.reservations.forget_prefixes()

    def send(self, request: OpenSequences | NodeBatch | VerifyBudget | CloseSequences) -> None:
        self.loop.inbox.put(Arrival(0, request))

    def open(
        self,
        seq_id: int,
        prompt: Sequence[int],
        guesses: Guesser = no_guesses,
        *,
        speculation: Speculation = Speculation.AUTO,
        committed: Sequence[int] = (),
        score_prompt: bool = False,
        **params: object,
    ) -> None:
        opened = OpenSequence(
            seq_id=seq_id,
            incarnation=1,
            prompt=tuple(prompt),
            committed=tuple(committed),
            params=SamplingParams(**params),
            speculation=speculation,
            score_prompt=score_prompt,
        )
        self._opened[seq_id], self._guessers[seq_id] = opened, guesses
        self.answers[seq_id] = Answer()
        self.send(OpenSequences((opened,)))
        self._guess(seq_id)

    def close(self, seq_id: int) -> None:
        """Close a sequence and forget it; commits that were on their way are dropped."""
        self.answers.pop(seq_id)
        self.send(CloseSequences((CloseSequence(seq_id, 1),)))

    def step(self) -> Response:
        """Wait for the next message of the worker and answer it as a drafter would."""
        response = self._published.get(timeout=_WAIT_SECONDS)
        match response:
            case StepResult(commits=commits):
                for commit in commits:
                    self._take(commit)
            case SequenceErrors(errors):
                for error in errors:
                    self.answers[error.seq_id].error = error
        return response

    def finish(self) -> dict[int, Answer]:
        """Run until every opened sequence has ended."""
        while not all(answer.done for answer in self.answers.values()):
            self.step()
        return self.answers

    def _take(self, commit: Commit) -> None:
        if commit.seq_id not in self.answers:
            return
        answer, opened = self.answers[commit.seq_id], self._opened[commit.seq_id]
        assert commit.position == len(opened.prompt) + len(opened.committed) + len(answer.tokens)
        answer.tokens += commit.tokens
        answer.finish = commit.finish
        answer.commits.append(commit)
        if commit.finish is None:
            self._guess(commit.seq_id)

    def _guess(self, seq_id: int) -> None:
        opened = self._opened[seq_id]
        tokens = [*opened.prompt, *opened.committed, *self.answers[seq_id].tokens]
        group = guess_group(opened, tokens, self._guessers[seq_id])
        self.send(NodeBatch((group,)))
