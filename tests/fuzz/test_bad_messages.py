"""Messages that can be read and make no sense: one clear answer each, and the stream's next
sequence runs as it always does unless the answer is the end of the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from support import doors
from support.doors import CONTEXT, MAX_NODES, MAX_SEQUENCES, PROMPT, VOCAB, opening
from support.fakes import until
from support.loop_lag import measured
from support.tiny_models import make_tiny_llama

from foredraft.tree.node_id import child_id, path_id, start_id
from foredraft.v1 import (
    common_pb2,
    draft_pb2,
    draft_pb2_grpc,
    generate_pb2,
    generate_pb2_grpc,
    verify_pb2,
    verify_pb2_grpc,
)
from foredraft.wire.channel import MAX_REQUEST_BYTES
from foredraft.wire.codec import draft, verify
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.errors import code_from_number
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    CloseSequences,
    Commit,
    Commits,
    DraftBudget,
    Nack,
    NodeBatch,
    NodeBlocks,
    NodeGroup,
    OpenSequences,
    SequenceErrors,
    Source,
    StepResult,
)

GOOD = 1  # the sequence that is opened after the bad message, on the same stream
ROOT = path_id(start_id(GOOD, 1), PROMPT)


@dataclass(frozen=True)
class Answer:
    """What a bad message gets: a status that ends the stream, or an error of one sequence.

    ``says``: part of the text. A message that can be left alone gets no answer (`HARMLESS`).
    """

    kind: str = ""
    code: str = ""
    says: str = ""

    def fits(self, other: Answer) -> bool:
        return (self.kind, self.code) == (other.kind, other.code) and self.says in other.says


HARMLESS = Answer()


def ends(says: str) -> Answer:
    return Answer("status", "INVALID_ARGUMENT", says)


def refused(says: str, code: str = "INVALID_ARGUMENT") -> Answer:
    return Answer("in-stream", code, says)


def bad_open(change: Callable[[Any], object]) -> common_pb2.OpenSequence:
    wire = verify.encode_request(OpenSequences((opening(9),))).open.sequences[0]
    change(wire)
    return wire


# Changes that make an opening impossible at both workers, and the field that is named.
OPENINGS: dict[str, tuple[Callable[[Any], object], str]] = {
    "no prompt": (lambda w: w.ClearField("prompt"), "prompt"),
    "id outside the vocabulary": (lambda w: w.prompt.append(VOCAB), "prompt"),
    "id 2^31": (lambda w: w.prompt.append(2**31), "prompt"),
    "id -1": (lambda w: w.prompt.append(-1 % 2**32), "prompt"),
    "committed id 2^31": (lambda w: w.committed.append(2**31), "committed"),
    "committed all it may": (lambda w: w.committed.extend([5] * 6), "committed"),
    "prompt as long as the context": (lambda w: w.prompt.extend([5] * CONTEXT), "prompt"),
    "oversized prompt": (lambda w: w.prompt.extend([5] * 100_000), "prompt"),
    "no tokens wanted": (lambda w: setattr(w.params, "max_tokens", 0), "max_tokens"),
    "temperature NaN": (lambda w: setattr(w.params, "temperature", float("nan")), "temperature"),
    "top_p 0": (lambda w: setattr(w.params, "top_p", 0.0), "top_p"),
    "bias infinite": (lambda w: w.params.logit_bias.update({5: float("inf")}), "logit_bias"),
    "stop id 2^31": (lambda w: w.params.stop_token_ids.append(2**31), "stop_token_ids"),
    "logprobs 21": (lambda w: setattr(w.params, "logprobs", 21), "logprobs"),
    "min above max": (lambda w: setattr(w.params, "min_tokens", 7), "min_tokens"),
    "unknown speculation": (lambda w: setattr(w, "speculation", 77), "speculation"),
}


def group(tokens: Sequence[int], seq_id: int = GOOD, **columns: Any) -> NodeGroup:
    """A chain of guesses below the good sequence's root."""
    parents = [ROOT]
    for token in tokens:
        parents.append(child_id(parents[-1], token))
    made = NodeGroup(
        seq_id=seq_id,
        incarnation=1,
        root_id=ROOT,
        complete=True,
        tokens=tuple(tokens),
        parent_ids=tuple(parents[:-1]),
        confidences=(0.9,) * len(tokens),
        sources=(Source.SUFFIX,) * len(tokens),
    )
    return made._replace(**columns)


def nodes(*groups: NodeGroup) -> verify_pb2.VerifyRequest:
    return verify.encode_request(encode_nodes(NodeBatch(groups)))


def changed_nodes(change: Callable[[Any], object]) -> verify_pb2.VerifyRequest:
    wire = common_pb2.NodeBatch.FromString(encode_nodes(NodeBatch((group((5, 6)),))))
    change(wire)
    return verify_pb2.VerifyRequest(nodes=wire.SerializeToString())


def closes(*sequences: CloseSequence) -> verify_pb2.VerifyRequest:
    return verify.encode_request(CloseSequences(sequences))


UNKNOWN_SCHEDULE = verify_pb2.VerifyBudget(schedule=99)
# Guesses are relayed unread, so what is wrong with them costs the guesses and nothing else.
VERIFY: dict[str, tuple[verify_pb2.VerifyRequest, Answer]] = {
    "empty message": (verify_pb2.VerifyRequest(), ends("message")),
    "unknown schedule": (verify_pb2.VerifyRequest(budget=UNKNOWN_SCHEDULE), ends("schedule")),
    "no sequences": (verify.encode_request(OpenSequences(())), HARMLESS),
    "close of an unknown sequence": (closes(CloseSequence(77, 1)), HARMLESS),
    "close of another incarnation": (closes(CloseSequence(GOOD, 7)), HARMLESS),
    "opened twice": (verify.encode_request(OpenSequences((opening(GOOD),) * 2)), HARMLESS),
    "nodes that are none": (verify_pb2.VerifyRequest(nodes=b"\xff\xff"), HARMLESS),
    "nodes with a short column": (changed_nodes(lambda w: w.parent_ids.pop()), HARMLESS),
    "nodes with false counts": (changed_nodes(lambda w: w.node_counts.append(9)), HARMLESS),
    "confidence NaN": (nodes(group((5,), confidences=(float("nan"),))), HARMLESS),
    "confidence 2": (nodes(group((5,), confidences=(2.0,))), HARMLESS),
    "unknown source": (changed_nodes(lambda w: w.sources.__setitem__(0, 9)), HARMLESS),
    "guess of id 2^31": (changed_nodes(lambda w: w.tokens.__setitem__(0, 2**31)), HARMLESS),
    "guess of id -1": (changed_nodes(lambda w: w.tokens.__setitem__(0, 2**32 - 1)), HARMLESS),
    "guess outside the vocabulary": (nodes(group((VOCAB,))), HARMLESS),
    "nodes of an unknown sequence": (nodes(group((5, 6), seq_id=88)), HARMLESS),
    "an empty list of nodes": (nodes(group(())), HARMLESS),
    "no groups": (nodes(), HARMLESS),
    "56 nodes, 8 allowed": (nodes(group(range(5, 61))), HARMLESS),
}


def commit(position: int, tokens: tuple[int, ...], seq_id: int = 9) -> draft_pb2.ProposeRequest:
    return draft.encode_request(Commits((Commit(seq_id, 1, position, tokens),)))


LOST = "FAILED_PRECONDITION"
MANY = OpenSequences(tuple(opening(100 + index) for index in range(MAX_SEQUENCES)))
SHORT_COLUMN = draft_pb2.Commits(seq_ids=[9], incarnations=[1])
DRAFT: dict[str, tuple[draft_pb2.ProposeRequest, Answer]] = {
    "empty message": (draft_pb2.ProposeRequest(), ends("message")),
    "commits with a short column": (
        draft_pb2.ProposeRequest(commits=SHORT_COLUMN),
        ends("positions"),
    ),
    "commit of id 2^31": (commit(len(PROMPT), (2**31,)), ends("tokens")),
    "survival NaN": (draft.encode_request(DraftBudget(8, 4, float("nan"))), ends("min_survival")),
    "survival -1": (draft.encode_request(DraftBudget(8, 4, -1.0)), ends("min_survival")),
    "price NaN": (
        draft.encode_request(DraftBudget(8, 4, 0.1, tokens_per_ms=(0.0, float("nan")))),
        ends("tokens_per_ms"),
    ),
    "price -1": (
        draft.encode_request(DraftBudget(8, 4, 0.1, tokens_per_row=(-1.0,))),
        ends("tokens_per_row"),
    ),
    "commit after a gap": (commit(len(PROMPT) + 3, (5,)), refused("continue", LOST)),
    "commit far away": (commit(2**32 - 1, (5,)), refused("continue", LOST)),
    "commit that contradicts": (commit(len(PROMPT) - 1, (99, 5)), refused("continue", LOST)),
    "commit outside the vocabulary": (commit(len(PROMPT), (VOCAB,)), refused("tokens")),
    "commit of an unknown sequence": (commit(0, (5,), seq_id=77), HARMLESS),
    "close of an unknown sequence": (
        draft.encode_request(CloseDrafts((CloseSequence(77, 1),))),
        HARMLESS,
    ),
    "close with a commit after a gap": (
        draft.encode_request(
            CloseDrafts((CloseSequence(9, 1),), (Commit(9, 1, len(PROMPT) + 3, (5,)),))
        ),
        refused("continue", LOST),
    ),
    "orphans that nobody knows": (
        draft.encode_request(Commits((Commit(9, 1, len(PROMPT), (), orphans=(1, 2, 3)),))),
        HARMLESS,
    ),
    "opened twice": (draft.encode_request(OpenSequences((opening(9),) * 2)), HARMLESS),
    "more than there is room for": (
        draft.encode_request(MANY),
        refused("max_sequences", "RESOURCE_EXHAUSTED"),
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bad") / "tiny"
    return make_tiny_llama(directory, vocab=VOCAB, context=CONTEXT)


class Talk:
    """One stream: messages go in, then everything is read until the good sequence is done.

    A message that ends the stream has to be the last: a client of grpc.aio that is still writing
    then may be told of an internal error instead of the server's status.
    """

    def __init__(self, call: Any, decode: Callable[[Any], Any]) -> None:
        self._call = call
        self._decode = decode
        self.answers: list[Answer] = []
        self.verified: list[int] = []

    async def hear(self, *wires: Any) -> list[int]:
        """What became of the good sequence; nothing if the stream was ended."""
        try:
            for wire in wires:
                await self._call.write(wire)
            return await asyncio.wait_for(self._read(), 20)
        except grpc.aio.AioRpcError as error:
            self.answers.append(Answer("status", error.code().name, error.details() or ""))
            return []
        finally:
            self._call.cancel()

    async def _read(self) -> list[int]:
        tokens: list[int] = []
        while True:
            match self._decode(await self._call.read()):
                case SequenceErrors(errors) | Nack(errors):
                    for error in errors:
                        code = code_from_number(error.code).name
                        self.answers.append(Answer("in-stream", code, error.message))
                case StepResult(commits=commits):
                    for done in (c for c in commits if c.seq_id == GOOD):
                        del tokens[done.position - len(PROMPT) :]  # it may have been opened again
                        tokens += done.tokens
                        self.verified.append(done.verified)
                        if done.finish is not None:
                            return tokens
                case NodeBlocks(blocks):
                    for block in blocks:
                        batch = common_pb2.NodeBatch.FromString(block.nodes)
                        if GOOD in batch.seq_ids:
                            return list(batch.tokens)


def expected_answers(table: dict[str, Any]) -> dict[str, Answer]:
    common = {name: refused(field) for name, (_, field) in OPENINGS.items()}
    return common | {name: answer for name, (_, answer) in table.items()}


def misfits(found: dict[str, list[Answer]], expected: dict[str, Answer]) -> dict[str, Any]:
    """The cases whose one answer is not the one that was expected."""
    return {
        name: answers
        for name, answers in found.items()
        if not (
            answers == []
            if expected[name] == HARMLESS
            else len(answers) == 1 and expected[name].fits(answers[0])
        )
    }


@pytest.mark.asyncio
async def test_the_verify_service(tmp_path: Path, model: Path) -> None:
    opened = verify.encode_request(OpenSequences((opening(GOOD),)))
    cases = {name: wire for name, (wire, _) in VERIFY.items()}
    for name, (change, _) in OPENINGS.items():
        opens = verify_pb2.OpenSequences(sequences=[bad_open(change)])
        cases[name] = verify_pb2.VerifyRequest(open=opens)
    answers = expected_answers(VERIFY)
    found: dict[str, list[Answer]] = {}
    async with doors.verify_door(tmp_path, model) as door:
        before, expected = dict(door.held()), await door.normal()
        stub = verify_pb2_grpc.VerifyServiceStub(door.channel)
        budget = verify_pb2.VerifyBudget(max_nodes=100, schedule=verify_pb2.SCHEDULE_AUTO)
        for name, wire in cases.items():
            talk = Talk(stub.Verify(), verify.decode_response)
            late = nodes(group((5, 6))) if "nodes" in name else wire
            wires = [verify_pb2.VerifyRequest(budget=budget), wire]
            if answers[name].kind != "status":
                wires.append(opened)
            if answers[name] == HARMLESS:
                wires.append(late)
            tokens = await talk.hear(*wires)
            found[name] = talk.answers
            ended = any(answer.kind == "status" for answer in talk.answers)
            assert tokens == ([] if ended else expected), name
            assert max(talk.verified, default=0) <= MAX_NODES, name
            assert await door.normal() == expected, name
            await until(lambda: door.held() == before)
    assert misfits(found, answers) == {}


@pytest.mark.asyncio
async def test_the_draft_service(tmp_path: Path, model: Path) -> None:
    opened = draft.encode_request(OpenSequences((opening(9),)))
    good = draft.encode_request(OpenSequences((opening(GOOD),)))
    closed = CloseDrafts(tuple(CloseSequence(100 + index, 1) for index in range(MAX_SEQUENCES)))
    close = draft.encode_request(closed)
    cases = {name: wire for name, (wire, _) in DRAFT.items()}
    for name, (change, _) in OPENINGS.items():
        opens = draft_pb2.OpenDrafts(sequences=[bad_open(change)])
        cases[name] = draft_pb2.ProposeRequest(open=opens)
    answers = expected_answers(DRAFT)
    found: dict[str, list[Answer]] = {}
    async with doors.draft_door(tmp_path, model) as door:
        before, guesses = dict(door.held()), await door.normal()
        stub = draft_pb2_grpc.DraftServiceStub(door.channel)
        for name, wire in cases.items():
            talk = Talk(stub.Propose(), draft.decode_response)
            wires = [opened, wire]
            if answers[name].kind != "status":
                wires += [close, good]
            tokens = await talk.hear(*wires)
            found[name] = talk.answers
            ended = any(answer.kind == "status" for answer in talk.answers)
            assert bool(tokens) is not ended, name
            assert await door.normal() == guesses, name
            await until(lambda: door.held() == before)
    assert misfits(found, answers) == {}


def asked(**fields: Any) -> generate_pb2.GenerateRequest:
    """A request that is right but for ``fields``; those of its parameters may be among them."""
    names = set(generate_pb2.GenerateRequest.DESCRIPTOR.fields_by_name)
    whole = {name: value for name, value in fields.items() if name in names}
    params = {name: value for name, value in fields.items() if name not in names}
    if not whole:
        whole["tokens"] = generate_pb2.TokenPrompt(ids=PROMPT)
    return generate_pb2.GenerateRequest(**whole, params=generate_pb2.GenerateParams(**params))


def ids(*tokens: int) -> generate_pb2.TokenPrompt:
    return generate_pb2.TokenPrompt(ids=tokens)


def chat(*messages: tuple[str, str]) -> generate_pb2.ChatPrompt:
    made = [generate_pb2.ChatMessage(role=role, content=content) for role, content in messages]
    return generate_pb2.ChatPrompt(messages=made)


# What a user may get wrong, and the field that the refusal names.
GENERATE: dict[str, tuple[generate_pb2.GenerateRequest, str]] = {
    "no prompt": (generate_pb2.GenerateRequest(), "prompt"),
    "empty list of ids": (asked(tokens=ids()), "prompt"),
    "id outside the vocabulary": (asked(tokens=ids(VOCAB)), "prompt"),
    "id 2^31": (asked(tokens=ids(2**31)), "prompt"),
    "id -1": (asked(tokens=ids(2**32 - 1)), "prompt"),
    "prompt as long as the context": (asked(tokens=ids(*[5] * CONTEXT)), "prompt"),
    "a million ids": (asked(tokens=ids(*[5] * 1_000_000)), "prompt"),
    "oversized text": (asked(text="a" * 1_000_000), "prompt"),
    "role without a character": (asked(chat=chat(("", "hello"))), "messages"),
    "another model": (asked(tokens=ids(5), model="else"), "model"),
    "temperature NaN": (asked(temperature=float("nan")), "temperature"),
    "temperature -1": (asked(temperature=-1.0), "temperature"),
    "top_p 0": (asked(top_p=0.0), "top_p"),
    "top_k -1": (asked(top_k=-1), "top_k"),
    "no tokens wanted": (asked(max_tokens=0), "max_tokens"),
    "2^32 - 1 tokens wanted": (asked(max_tokens=2**32 - 1), "max_tokens"),
    "min above max": (asked(max_tokens=3, min_tokens=4), "min_tokens"),
    "unknown speculation": (asked(speculation=77), "speculation"),
    "17 stop strings": (asked(stop=["a"] * 17), "stop"),
    "empty stop string": (asked(stop=[""]), "stop"),
    "stop id 2^40": (asked(stop_token_ids=[2**40]), "stop_token_ids"),
    "bias of id -1": (asked(logit_bias={-1: 1.0}), "logit_bias"),
    "bias infinite": (asked(logit_bias={5: float("inf")}), "logit_bias"),
    "logprobs 21": (asked(logprobs=21), "logprobs"),
    "grammar": (asked(grammar="root ::= x"), "grammar"),
    "lossy threshold": (asked(lossy_threshold=0.5), "lossy_threshold"),
}
UNSUPPORTED = {"grammar", "lossy threshold"}


@pytest.mark.asyncio
async def test_the_public_door(tmp_path: Path, model: Path) -> None:
    found: dict[str, tuple[str, str]] = {}
    expected = {
        name: ("UNIMPLEMENTED" if name in UNSUPPORTED else "INVALID_ARGUMENT", field)
        for name, (_, field) in GENERATE.items()
    }
    async with doors.generate_door(tmp_path, model) as door:
        before, tokens = dict(door.held()), await door.normal()
        stub = generate_pb2_grpc.GenerateServiceStub(door.channel)
        for name, (request, _) in GENERATE.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(request)
            text = caught.value.details() or ""
            named = text.split(" ")[0]
            found[name] = (caught.value.code().name, named)
            assert await door.normal() == tokens, name
        await until(lambda: door.held() == before)
    assert found == expected


# More of a thing than any request may have, as few bytes each as can be, and its field and limit.
TOO_MANY: dict[str, tuple[generate_pb2.GenerateRequest, int]] = {
    "prompt": (asked(tokens=ids(*[5] * 1_500_000)), 2**20),
    "messages": (asked(chat=chat(*[("", "")] * 500_000)), 16_384),
    "stop": (asked(stop=[""] * 500_000), 16),
    "stop_token_ids": (asked(stop_token_ids=[5] * 1_500_000), 1_024),
    "logit_bias": (asked(logit_bias=dict.fromkeys(range(100_000), 0.0)), 1_024),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("field", TOO_MANY)
async def test_more_of_a_thing_than_a_request_may_have(
    tmp_path: Path, model: Path, field: str
) -> None:
    """Told by the count alone, as fast as the message can be decoded at all."""
    request, limit = TOO_MANY[field]
    began = time.perf_counter()
    for _ in range(3):
        generate_pb2.GenerateRequest.FromString(request.SerializeToString())
    decoding = time.perf_counter() - began
    async with doors.generate_door(tmp_path, model) as door:
        tokens = await door.normal()
        stub = generate_pb2_grpc.GenerateServiceStub(door.channel)
        with pytest.raises(grpc.aio.AioRpcError, match=f"at most {limit} ") as caught:
            async with measured() as lag:
                await stub.Generate(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(f"{field} must be ")
        assert await door.normal() == tokens
    assert lag.longest < decoding


@pytest.mark.asyncio
async def test_a_message_over_the_limit(tmp_path: Path, model: Path) -> None:
    """More bytes than a request may have: not even sent, and refused before it is read."""
    async with doors.generate_door(tmp_path, model) as door:
        before, tokens = dict(door.held()), await door.normal()
        anything = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(door.address, options=anything) as careless:
            for channel in (door.channel, careless):
                start = channel.unary_unary("/foredraft.v1.GenerateService/Generate")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await start(bytes(MAX_REQUEST_BYTES + 1))
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert str(MAX_REQUEST_BYTES) in (caught.value.details() or "")
        assert await door.normal() == tokens
        await until(lambda: door.held() == before)
