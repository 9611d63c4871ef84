"""Codec of protos/foredraft/v1/draft.proto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import inf

from google.protobuf.message import DecodeError

from foredraft.v1 import draft_pb2 as pb
from foredraft.wire.codec.common import (
    check_rows,
    check_total,
    decode_closes,
    decode_enum,
    decode_errors,
    decode_opens,
    decode_tokens,
    decode_worker,
    encode_closes,
    encode_errors,
    encode_open,
    encode_worker,
    split,
)
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import (
    OUTCOME_BINS,
    OUTCOME_DEPTHS,
    CloseDrafts,
    Commit,
    Commits,
    DraftBudget,
    DraftTimings,
    GuessOutcomes,
    Nack,
    NodeBlock,
    NodeBlocks,
    OpenSequences,
    SequenceError,
    Source,
    WorkerIdentity,
)

Request = OpenSequences | Commits | DraftBudget | CloseDrafts
Response = NodeBlocks | Nack


def encode_handshake(worker: WorkerIdentity) -> pb.DraftServiceHandshakeResponse:
    return pb.DraftServiceHandshakeResponse(
        worker=encode_worker(worker), keeps_texts=worker.keeps_texts
    )


def decode_handshake(wire: pb.DraftServiceHandshakeResponse) -> WorkerIdentity:
    return replace(decode_worker(wire.worker), keeps_texts=wire.keeps_texts)


def encode_request(request: Request) -> pb.ProposeRequest:
    match request:
        case OpenSequences(sequences):
            opens = [encode_open(sequence) for sequence in sequences]
            return pb.ProposeRequest(open=pb.OpenDrafts(sequences=opens))
        case Commits():
            return pb.ProposeRequest(commits=_encode_commits(request.commits))
        case DraftBudget():
            budget = pb.DraftBudget(
                max_nodes_per_sequence=request.max_nodes_per_sequence,
                max_depth=request.max_depth,
                min_survival=request.min_survival,
                ahead_survival=request.ahead_survival,
                tokens_per_ms=request.tokens_per_ms,
                tokens_per_row=request.tokens_per_row,
            )
            return pb.ProposeRequest(budget=budget)
        case CloseDrafts(sequences, last):
            closes = pb.CloseDrafts(sequences=encode_closes(sequences), last=_encode_commits(last))
            return pb.ProposeRequest(close=closes)


def decode_request(wire: pb.ProposeRequest) -> tuple[Request, tuple[SequenceError, ...]]:
    """The request, and an error for each sequence in it that had to be left out.

    Raises:
        BadMessage: nothing in the message can be used.
    """
    match wire.WhichOneof("message"):
        case "open":
            sequences, errors = decode_opens(wire.open.sequences)
            return OpenSequences(sequences), errors
        case "commits":
            return Commits(_decode_commits(wire.commits)), ()
        case "budget":
            return _decode_budget(wire.budget), ()
        case "close":
            return CloseDrafts(
                decode_closes(wire.close.sequences), _decode_commits(wire.close.last)
            ), ()
    raise BadMessage("message", "one of open, commits, budget, close")


def encode_commits(commits: Sequence[Commit]) -> bytes:
    """Commits alone, as a lane carries them."""
    return _encode_commits(commits).SerializeToString()


def decode_commits(data: bytes) -> Commits:
    """Raises BadMessage if they are no such message or their columns do not add up."""
    try:
        wire = pb.Commits.FromString(data)
    except DecodeError:
        raise BadMessage("commits", "serialized Commits") from None
    return Commits(_decode_commits(wire))


def encode_response(response: Response) -> pb.ProposeResponse:
    match response:
        case NodeBlocks(blocks, timings, outcomes):
            wire = pb.NodeBlocks(
                blocks=[
                    pb.NodeBlock(verify_worker=block.verify_worker, nodes=block.nodes)
                    for block in blocks
                ],
                timings=pb.DraftTimings(
                    suffix_us=timings.suffix_us,
                    model_us=timings.model_us,
                    model_passes=timings.model_passes,
                ),
                outcomes=_encode_outcomes(outcomes),
            )
            return pb.ProposeResponse(nodes=wire)
        case Nack(errors):
            return pb.ProposeResponse(nack=pb.Nack(errors=encode_errors(errors)))


def decode_response(wire: pb.ProposeResponse) -> Response:
    """The blocks of nodes stay bytes: their reader is the verify worker they name."""
    match wire.WhichOneof("message"):
        case "nodes":
            blocks = tuple(
                NodeBlock(block.verify_worker, block.nodes) for block in wire.nodes.blocks
            )
            timings = wire.nodes.timings
            return NodeBlocks(
                blocks,
                DraftTimings(timings.suffix_us, timings.model_us, timings.model_passes),
                _decode_outcomes(wire.nodes.outcomes),
            )
        case "nack":
            return Nack(decode_errors(wire.nack.errors))
    raise BadMessage("message", "one of nodes, nack")


def _encode_commits(commits: Sequence[Commit]) -> pb.Commits:
    return pb.Commits(
        seq_ids=[commit.seq_id for commit in commits],
        incarnations=[commit.incarnation for commit in commits],
        positions=[commit.position for commit in commits],
        token_counts=[len(commit.tokens) for commit in commits],
        tokens=chain.from_iterable(commit.tokens for commit in commits),
        accepted_counts=[commit.accepted for commit in commits],
        orphan_counts=[len(commit.orphans) for commit in commits],
        orphan_ids=chain.from_iterable(commit.orphans for commit in commits),
    )


def _decode_commits(wire: pb.Commits) -> tuple[Commit, ...]:
    check_rows(
        len(wire.seq_ids),
        incarnations=wire.incarnations,
        positions=wire.positions,
        token_counts=wire.token_counts,
        accepted_counts=wire.accepted_counts,
        orphan_counts=wire.orphan_counts,
    )
    check_total("tokens", wire.tokens, wire.token_counts)
    check_total("orphan_ids", wire.orphan_ids, wire.orphan_counts)
    rows = zip(
        wire.seq_ids,
        wire.incarnations,
        wire.positions,
        split(decode_tokens("tokens", wire.tokens), wire.token_counts),
        wire.accepted_counts,
        split(tuple(wire.orphan_ids), wire.orphan_counts),
        strict=True,
    )
    return tuple(
        [
            Commit(seq_id, incarnation, position, tokens, accepted=accepted, orphans=orphans)
            for seq_id, incarnation, position, tokens, accepted, orphans in rows
        ]
    )


def _decode_budget(wire: pb.DraftBudget) -> DraftBudget:
    for name in ("min_survival", "ahead_survival"):
        if not 0.0 <= getattr(wire, name) <= 1.0:
            raise BadMessage(name, "a number from 0 to 1")
    tokens_per_ms, tokens_per_row = tuple(wire.tokens_per_ms), tuple(wire.tokens_per_row)
    for name, prices in (("tokens_per_ms", tokens_per_ms), ("tokens_per_row", tokens_per_row)):
        if not all(0.0 <= price < inf for price in prices):
            raise BadMessage(name, "numbers of at least 0")
    return DraftBudget(
        wire.max_nodes_per_sequence,
        wire.max_depth,
        wire.min_survival,
        wire.ahead_survival,
        tokens_per_ms,
        tokens_per_row,
    )


def _encode_outcomes(outcomes: Sequence[GuessOutcomes]) -> pb.GuessOutcomes:
    return pb.GuessOutcomes(
        sources=[int(row.source) for row in outcomes],  # type: ignore[misc]
        depths=[row.depth for row in outcomes],
        bins=[row.bin for row in outcomes],
        guesses=[row.guesses for row in outcomes],
        predicted=[row.predicted for row in outcomes],
        accepted=[row.accepted for row in outcomes],
    )


def _decode_outcomes(wire: pb.GuessOutcomes) -> tuple[GuessOutcomes, ...]:
    """Raises BadMessage if a row counts more successes than guesses, or is of no known kind."""
    check_rows(
        len(wire.sources),
        depths=wire.depths,
        bins=wire.bins,
        guesses=wire.guesses,
        predicted=wire.predicted,
        accepted=wire.accepted,
    )
    columns = wire.depths, wire.bins, wire.guesses, wire.predicted, wire.accepted
    sources = (decode_enum("sources", Source, source) for source in wire.sources)
    rows = tuple([GuessOutcomes(*row) for row in zip(sources, *columns, strict=True)])
    for row in rows:
        if not 1 <= row.depth <= OUTCOME_DEPTHS:
            raise BadMessage("depths", f"from 1 to {OUTCOME_DEPTHS}")
        if row.bin >= OUTCOME_BINS:
            raise BadMessage("bins", f"from 0 to {OUTCOME_BINS - 1}")
        for name in ("predicted", "accepted"):
            if not 0 <= getattr(row, name) <= row.guesses:
                raise BadMessage(name, "at least 0 and at most the guesses of its row")
    return rows
