"""Two thousand broken payloads at each door: one status each, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from google.protobuf.message import Message
from support import doors
from support.fakes import until
from support.malformed import Answers, malformed, send_to_call, send_to_stream
from support.tiny_models import make_tiny_llama

from foredraft.tree.node_id import path_id, start_id
from foredraft.v1 import generate_pb2
from foredraft.wire.codec import draft, verify
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    CloseSequences,
    Commit,
    Commits,
    DraftBudget,
    NodeBatch,
    NodeGroup,
    OpenSequences,
    Source,
    VerifyBudget,
)

PAYLOADS = 2000
OPENS = OpenSequences((doors.opening(1, temperature=1.0, seed=3), doors.opening(2, min_p=0.5)))
CLOSES = CloseSequences((CloseSequence(1, 1), CloseSequence(2, 1)))
ENDS = CloseDrafts(CLOSES.sequences, (Commit(1, 1, 18, (7,)),))
ROOT = path_id(start_id(1, 1), doors.PROMPT)
NODES = NodeBatch((NodeGroup(1, 1, ROOT, True, (9,), (ROOT,), (0.5,), (Source.SUFFIX,)),))
VERIFY = [
    verify.encode_request(request)
    for request in (OPENS, encode_nodes(NODES), VerifyBudget(8, 1000, True), CLOSES)
]
DRAFT = [
    draft.encode_request(request)
    for request in (OPENS, Commits((Commit(1, 1, 16, (5, 6)),)), DraftBudget(8, 4, 0.1), ENDS)
]
GENERATE = [
    generate_pb2.GenerateStreamRequest(
        request=generate_pb2.GenerateRequest(
            tokens=generate_pb2.TokenPrompt(ids=doors.PROMPT),
            params=generate_pb2.GenerateParams(max_tokens=9, temperature=0.5, stop=["end"], seed=1),
        )
    ),
    generate_pb2.GenerateStreamRequest(
        request=generate_pb2.GenerateRequest(
            chat=generate_pb2.ChatPrompt(
                messages=[generate_pb2.ChatMessage(role="user", content="Name three rivers.")]
            ),
            params=generate_pb2.GenerateParams(logprobs=2, logit_bias={7: -1.0}),
        )
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fuzz") / "tiny"
    return make_tiny_llama(directory, vocab=doors.VOCAB, context=doors.CONTEXT)


async def bombard(
    door: doors.Door, messages: Sequence[Message], send: Callable[[list[bytes]], Awaitable[Answers]]
) -> Answers:
    """All payloads, while normal requests come and go beside them and end as they always do."""
    before, expected = dict(door.held()), await door.normal()
    sending = asyncio.create_task(send(list(malformed(messages, PAYLOADS, seed=1))))
    normal = 0
    while not sending.done():
        assert await door.normal() == expected
        normal += 1
        await asyncio.sleep(0.02)  # leaves most of the time to the payloads
    answers = await sending
    assert answers.total() == PAYLOADS and normal > 10
    assert await door.normal() == expected
    await until(lambda: door.held() == before)
    return answers


def check(answers: Answers, refusals: set[str]) -> None:
    """Nothing but ``refusals``, each with a text that is meant for the caller."""
    assert set(answers) <= {"OK", *refusals}, answers
    assert answers["INVALID_ARGUMENT"] > PAYLOADS / 2
    assert all(answers.texts)
    assert not [text for text in answers.texts if "incident" in text or "<class" in text]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_verify_service(tmp_path: Path, model: Path) -> None:
    async with doors.verify_door(tmp_path, model) as door:
        path = "/foredraft.v1.VerifyService/Verify"
        answers = await bombard(door, VERIFY, lambda p: send_to_stream(door.channel, path, p))
    check(answers, {"INVALID_ARGUMENT"})


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_draft_service(tmp_path: Path, model: Path) -> None:
    async with doors.draft_door(tmp_path, model) as door:
        path = "/foredraft.v1.DraftService/Propose"
        answers = await bombard(door, DRAFT, lambda p: send_to_stream(door.channel, path, p))
    check(answers, {"INVALID_ARGUMENT"})


@pytest.mark.asyncio
async def test_the_public_door(tmp_path: Path, model: Path) -> None:
    async with doors.generate_door(tmp_path, model) as door:
        path = "/foredraft.v1.GenerateService/GenerateStream"
        answers = await bombard(door, GENERATE, lambda p: send_to_call(door.channel, path, p))
    check(answers, {"INVALID_ARGUMENT", "UNIMPLEMENTED"})
