"""Codec of protos/foredraft/v1/verify.proto."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import inf

from foredraft.params import Schedule
from foredraft.v1 import verify_pb2 as pb
from foredraft.wire.codec.common import (
    check_rows,
    check_total,
    decode_closes,
    decode_enum,
    decode_errors,
    decode_finish,
    decode_opens,
    decode_tokens,
    decode_worker,
    encode_closes,
    encode_errors,
    encode_open,
    encode_worker,
    split,
)
from foredraft.wire.codec.nodes import decode_nodes
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import (
    CloseSequences,
    Commit,
    NodeBatch,
    OpenSequences,
    PromptLogprobs,
    SequenceError,
    SequenceErrors,
    StepResult,
    StepTimings,
    TokenLogprobs,
    VerifyBudget,
    WorkerIdentity,
)

Request = OpenSequences | NodeBatch | VerifyBudget | CloseSequences
Response = StepResult | SequenceErrors


def encode_handshake(worker: WorkerIdentity) -> pb.VerifyServiceHandshakeResponse:
    return pb.VerifyServiceHandshakeResponse(worker=encode_worker(worker))


def decode_handshake(wire: pb.VerifyServiceHandshakeResponse) -> WorkerIdentity:
    return decode_worker(wire.worker)


def encode_request(
    request: OpenSequences | bytes | VerifyBudget | CloseSequences,
) -> pb.VerifyRequest:
    """``bytes`` is a serialized NodeBatch, passed on as it stands."""
    match request:
        case OpenSequences(sequences):
            opens = [encode_open(sequence) for sequence in sequences]
            return pb.VerifyRequest(open=pb.OpenSequences(sequences=opens))
        case bytes():
            return pb.VerifyRequest(nodes=request)
        case VerifyBudget():
            budget = pb.VerifyBudget(
                max_nodes=request.max_nodes,
                max_hold_us=request.max_hold_us,
                drafting=request.drafting,
                schedule=int(request.schedule),  # type: ignore[arg-type]
            )
            return pb.VerifyRequest(budget=budget)
        case CloseSequences(sequences):
            closes = pb.CloseSequences(sequences=encode_closes(sequences))
            return pb.VerifyRequest(close=closes)


def decode_request(wire: pb.VerifyRequest) -> tuple[Request, tuple[SequenceError, ...]]:
    """The request, and an error for each sequence in it that had to be left out.

    A sequence whose guesses were left out goes on without them: no fault of a drafter may cost
    an answer.

    Raises:
        BadMessage: nothing in the message can be used.
    """
    match wire.WhichOneof("message"):
        case "open":
            sequences, errors = decode_opens(wire.open.sequences)
            return OpenSequences(sequences), errors
        case "nodes":
            return decode_nodes(wire.nodes)
        case "budget":
            budget = wire.budget
            schedule = decode_enum("schedule", Schedule, budget.schedule)
            return (
                VerifyBudget(budget.max_nodes, budget.max_hold_us, budget.drafting, schedule),
                (),
            )
        case "close":
            return CloseSequences(decode_closes(wire.close.sequences)), ()
    raise BadMessage("message", "one of open, nodes, budget, close")


def encode_response(response: Response) -> pb.VerifyResponse:
    match response:
        case StepResult():
            return pb.VerifyResponse(step=_encode_step(response))
        case SequenceErrors(errors):
            return pb.VerifyResponse(errors=pb.SequenceErrors(errors=encode_errors(errors)))


def decode_response(wire: pb.VerifyResponse) -> Response:
    """Raises BadMessage if the columns do not add up or a value is out of range."""
    match wire.WhichOneof("message"):
        case "step":
            return _decode_step(wire.step)
        case "errors":
            return SequenceErrors(decode_errors(wire.errors.errors))
    raise BadMessage("message", "one of step, errors")


def _encode_step(result: StepResult) -> pb.StepResult:
    commits, timings = result.commits, result.timings
    return pb.StepResult(
        step=result.step,
        seq_ids=[commit.seq_id for commit in commits],
        incarnations=[commit.incarnation for commit in commits],
        positions=[commit.position for commit in commits],
        token_counts=[len(commit.tokens) for commit in commits],
        tokens=chain.from_iterable(commit.tokens for commit in commits),
        verified_counts=[commit.verified for commit in commits],
        accepted_counts=[commit.accepted for commit in commits],
        hits=[commit.hit for commit in commits],
        finishes=[int(commit.finish or 0) for commit in commits],  # type: ignore[misc]
        orphan_counts=[len(commit.orphans) for commit in commits],
        orphan_ids=chain.from_iterable(commit.orphans for commit in commits),
        logprobs=_encode_logprobs(commits),
        timings=pb.StepTimings(
            held_us=timings.held_us,
            prepare_us=timings.prepare_us,
            forward_us=timings.forward_us,
            sample_us=timings.sample_us,
            commit_us=timings.commit_us,
            hold_limit_us=timings.hold_limit_us,
            period_us=timings.period_us,
            row_us=timings.row_us,
        ),
        free_blocks=result.free_blocks,
        promised=result.promised,
        drafter_told=result.drafter_told,
        cached_counts=[commit.cached for commit in commits],
        prompt_logprobs=[
            pb.PromptLogprobs(
                seq_id=commit.seq_id,
                chosen=commit.prompt.chosen,
                top_ids=commit.prompt.top_ids,
                top_values=commit.prompt.top_values,
            )
            for commit in commits
            if commit.prompt is not None
        ],
    )


def _encode_logprobs(commits: Iterable[Commit]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            seq_id=commit.seq_id,
            chosen=entry.chosen,
            top_ids=entry.top_ids,
            top_values=entry.top_values,
        )
        for commit in commits
        for entry in commit.logprobs
    ]


def _decode_step(wire: pb.StepResult) -> StepResult:
    _check_columns(wire)
    rows = zip(
        wire.seq_ids,
        wire.incarnations,
        wire.positions,
        split(decode_tokens("tokens", wire.tokens), wire.token_counts),
        wire.verified_counts,
        wire.accepted_counts,
        wire.hits,
        wire.finishes,
        split(tuple(wire.orphan_ids), wire.orphan_counts),
        wire.cached_counts,
        strict=True,
    )
    logprobs = _decode_logprobs(wire.logprobs)
    prompts = {scored.seq_id: _decode_prompt(scored) for scored in wire.prompt_logprobs}
    commits: list[Commit] = []
    for row in rows:
        seq_id, incarnation, position, tokens, verified, accepted, hit, finish, orphans, cached = (
            row
        )
        entries = tuple(logprobs.pop(seq_id, ()))
        if entries and len(entries) != len(tokens):
            raise BadMessage("logprobs", "one entry per committed token")
        commits.append(
            Commit(
                seq_id,
                incarnation,
                position,
                tokens,
                verified,
                accepted,
                hit,
                decode_finish(finish),
                orphans,
                entries,
                cached,
                prompts.pop(seq_id, None),
            )
        )
    if logprobs or prompts:
        name = "logprobs" if logprobs else "prompt_logprobs"
        raise BadMessage(name, "of sequences that the step names")
    timings = wire.timings
    return StepResult(
        step=wire.step,
        commits=tuple(commits),
        timings=StepTimings(
            timings.held_us,
            timings.prepare_us,
            timings.forward_us,
            timings.sample_us,
            timings.commit_us,
            timings.hold_limit_us,
            timings.period_us,
            timings.row_us,
        ),
        free_blocks=wire.free_blocks,
        promised=_promised(wire.promised),
        drafter_told=wire.drafter_told,
    )


def _promised(tokens: float) -> float:
    if not 0.0 <= tokens < inf:
        raise BadMessage("promised", "a finite number of tokens")
    return tokens


def _check_columns(wire: pb.StepResult) -> None:
    check_rows(
        len(wire.seq_ids),
        incarnations=wire.incarnations,
        positions=wire.positions,
        token_counts=wire.token_counts,
        verified_counts=wire.verified_counts,
        accepted_counts=wire.accepted_counts,
        hits=wire.hits,
        finishes=wire.finishes,
        orphan_counts=wire.orphan_counts,
        cached_counts=wire.cached_counts,
    )
    check_total("tokens", wire.tokens, wire.token_counts)
    check_total("orphan_ids", wire.orphan_ids, wire.orphan_counts)


def _decode_logprobs(wires: Iterable[pb.TokenLogprobs]) -> dict[int, list[TokenLogprobs]]:
    """Entries by sequence, in the order of its tokens."""
    entries: dict[int, list[TokenLogprobs]] = {}
    for wire in wires:
        if len(wire.top_ids) != len(wire.top_values):
            raise BadMessage("top_values", "as long as top_ids")
        entry = TokenLogprobs(
            wire.chosen, decode_tokens("top_ids", wire.top_ids), tuple(wire.top_values)
        )
        entries.setdefault(wire.seq_id, []).append(entry)
    return entries


def _decode_prompt(wire: pb.PromptLogprobs) -> PromptLogprobs:
    places, listed = len(wire.chosen), len(wire.top_ids)
    if len(wire.top_values) != listed or (listed % places if places else listed):
        raise BadMessage("prompt_logprobs", "columns with the same number of values at each place")
    ids = decode_tokens("top_ids", wire.top_ids[:])
    return PromptLogprobs(tuple(wire.chosen[:]), ids, tuple(wire.top_values[:]))
