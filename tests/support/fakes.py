"""Workers without models: real gRPC servers that do what a test tells them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foredraft.config import GatewayConfig
from foredraft.params import FinishReason
from foredraft.v1 import draft_pb2_grpc, verify_pb2_grpc
from foredraft.wire import channel
from foredraft.wire.codec import draft as draft_codec
from foredraft.wire.codec import verify as verify_codec
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    CloseSequences,
    Commit,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    NodeBatch,
    NodeBlock,
    NodeBlocks,
    OpenSequence,
    OpenSequences,
    PromptLogprobs,
    StepResult,
    TokenLogprobs,
    VerifyBudget,
    WorkerIdentity,
)
from gateway.server import Gateway

PATIENCE_SECONDS = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` holds; a test that waits in vain fails."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Round:
    """What one step commits for a sequence."""

    tokens: tuple[int, ...]
    accepted: int = 0
    hit: bool = False
    verified: int = 0
    finish: FinishReason | None = None
    orphans: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached: int = 0
    prompt: PromptLogprobs | None = None  # told if it was asked for


class _Streams:
    """What both fakes have: an identity and the outboxes of their open streams."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.identity = identity
        self.outboxes: list[asyncio.Queue] = []

    def say(self, message: object) -> None:
        for outbox in self.outboxes:
            outbox.put_nowait(message)

    def hang_up(self) -> None:
        self.say(None)

    async def _talk(self, requests, take: Callable) -> AsyncIterator:
        outbox: asyncio.Queue = asyncio.Queue()
        self.outboxes.append(outbox)

        async def read() -> None:
            async for wire in requests:
                take(wire)
            outbox.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            self.outboxes.remove(outbox)
            reader.cancel()


class FakeVerify(_Streams, verify_pb2_grpc.VerifyServiceServicer):
    """Plays ``rounds`` for every opened sequence, or waits for the test to `commit`."""

    def __init__(self, identity: WorkerIdentity, rounds: Iterable[Round] = ()) -> None:
        super().__init__(identity)
        self.rounds = tuple(rounds)
        self.live: dict[int, OpenSequence] = {}
        self.opened: list[OpenSequence] = []
        self.closed: list[CloseSequence] = []
        self.budgets: list[VerifyBudget] = []
        self.nodes: list[NodeBatch] = []
        self._positions: dict[int, int] = {}

    async def Handshake(self, request, context):
        return verify_codec.encode_handshake(self.identity)

    async def Verify(self, request_iterator, context):
        async for message in self._talk(request_iterator, self._take):
            yield verify_codec.encode_response(message)
        self.live.clear()

    def incarnation(self, seq_id: int) -> int:
        """The newest one of a sequence."""
        return next(o.incarnation for o in reversed(self.opened) if o.seq_id == seq_id)

    def commit(self, seq_id: int, done: Round, position: int | None = None) -> None:
        """One step that commits ``done`` for one sequence, at its next position by default."""
        at = self._positions[seq_id] if position is None else position
        self._positions[seq_id] = at + len(done.tokens)
        asked = next(o.score_prompt for o in reversed(self.opened) if o.seq_id == seq_id)
        commit = Commit(
            seq_id=seq_id,
            incarnation=self.incarnation(seq_id),
            position=at,
            tokens=done.tokens,
            verified=done.verified,
            accepted=done.accepted,
            hit=done.hit,
            finish=done.finish,
            orphans=done.orphans,
            logprobs=done.logprobs,
            cached=done.cached,
            prompt=done.prompt if asked else None,
        )
        if done.finish is not None:
            self.live.pop(seq_id, None)
        self.say(StepResult(1, (commit,)))

    def _take(self, wire) -> None:
        request, errors = verify_codec.decode_request(wire)
        assert not errors
        match request:
            case OpenSequences(sequences):
                for sequence in sequences:
                    self._open(sequence)
            case NodeBatch():
                self.nodes.append(request)
            case VerifyBudget():
                self.budgets.append(request)
            case CloseSequences(sequences):
                self.closed.extend(sequences)
                for sequence in sequences:
                    self.live.pop(sequence.seq_id, None)

    def _open(self, sequence: OpenSequence) -> None:
        self.opened.append(sequence)
        self.live[sequence.seq_id] = sequence
        self._positions[sequence.seq_id] = len(sequence.prompt) + len(sequence.committed)
        for done in self.rounds:
            self.commit(sequence.seq_id, done)


@dataclass
class Followed:
    """What the drafter knows of a sequence."""

    opened: OpenSequence
    tokens: list[int] = field(default_factory=list)


class FakeDraft(_Streams, draft_pb2_grpc.DraftServiceServicer):
    """Follows sequences and proposes only what the test says."""

    def __init__(self, identity: WorkerIdentity) -> None:
        super().__init__(identity)
        self.live: dict[int, Followed] = {}
        self.opened: list[OpenSequence] = []
        self.commits: list[Commit] = []
        self.closed: list[CloseSequence] = []
        self.texts: dict[int, list[int]] = {}  # by seq_id: what it knew of those that are closed
        self.budgets: list[DraftBudget] = []

    async def Handshake(self, request, context):
        return draft_codec.encode_handshake(self.identity)

    async def Propose(self, request_iterator, context):
        async for message in self._talk(request_iterator, self._take):
            yield draft_codec.encode_response(message)
        self.live.clear()

    def propose(self, nodes: bytes) -> None:
        self.say(NodeBlocks((NodeBlock(0, nodes),)))

    def _take(self, wire) -> None:
        request, errors = draft_codec.decode_request(wire)
        assert not errors
        match request:
            case OpenSequences(sequences):
                self.opened.extend(sequences)
                for sequence in sequences:
                    known = [*sequence.prompt, *sequence.committed]
                    self.live[sequence.seq_id] = Followed(sequence, known)
            case Commits(commits):
                self.commits.extend(commits)
                self._follow(commits)
            case DraftBudget():
                self.budgets.append(request)
            case CloseDrafts(sequences, last):
                self._follow(last)
                self.closed.extend(sequences)
                for sequence in sequences:
                    self.texts[sequence.seq_id] = self.live.pop(sequence.seq_id).tokens

    def _follow(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            followed = self.live[commit.seq_id]
            assert commit.position == len(followed.tokens)
            followed.tokens.extend(commit.tokens)


def identity(
    tokenizer_hash: str, vocab_size: int, *, context: int = 256, max_sequences: int = 8
) -> WorkerIdentity:
    return WorkerIdentity(
        ModelInfo("tiny", tokenizer_hash, vocab_size, context, (2,), "float32"),
        Limits(max_sequences, max_nodes=32, max_depth=8),
    )


@contextlib.asynccontextmanager
async def worker(
    servicer: FakeVerify | FakeDraft, address: str, health: Health | None = None
) -> AsyncIterator[str]:
    """Serve a fake at ``address`` and give the address it got; without ``health`` it has none."""
    server = channel.private_server([ErrorInterceptor()])
    if health is not None:
        await health.attach(server)
    if isinstance(servicer, FakeVerify):
        verify_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server)
    else:
        draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    bound = channel.bind(server, address)
    await server.start()
    try:
        yield bound
    finally:
        servicer.hang_up()
        await server.stop(0)


@contextlib.asynccontextmanager
async def gateway(
    model: Path,
    verify: str,
    *draft: str,
    others: Sequence[str] = (),
    ready: bool = True,
    **settings,
) -> AsyncIterator[Gateway]:
    """A gateway in this process, as its server starts it; ``ready``: wait for its target.

    ``others`` are more verify workers.
    """
    config = GatewayConfig(
        grpc_listen="127.0.0.1:0", model=model, verify=(verify, *others), draft=draft, **settings
    )
    running = Gateway(config)
    await running.health.attach(running.server)
    await running.server.start()
    work = asyncio.create_task(running.work())
    try:
        if ready:
            await until(lambda: running.relay.ready)
        yield running
    finally:
        await running.server.stop(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
