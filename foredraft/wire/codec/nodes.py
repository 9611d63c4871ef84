"""Codec of NodeBatch: the only message that the gateway passes on unread."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from math import isfinite

from google.protobuf.message import DecodeError

from foredraft.params import InvalidField
from foredraft.v1 import common_pb2 as pb
from foredraft.wire.codec.common import (
    check_rows,
    check_total,
    decode_tokens,
    invalid_sequence,
    split,
)
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import NodeBatch, NodeGroup, SequenceError, Source

_SOURCES = {int(source): source for source in Source}


def encode_nodes(batch: NodeBatch) -> bytes:
    groups = batch.groups
    wire = pb.NodeBatch(
        seq_ids=[group.seq_id for group in groups],
        incarnations=[group.incarnation for group in groups],
        node_counts=[len(group.tokens) for group in groups],
        root_ids=[group.root_id for group in groups],
        complete=[group.complete for group in groups],
    )
    tokens, parent_ids = wire.tokens, wire.parent_ids
    confidences, sources = wire.confidences, wire.sources
    for group in groups:
        tokens.extend(group.tokens)
        parent_ids.extend(group.parent_ids)
        confidences.extend(group.confidences)
        sources.extend(group.sources)  # type: ignore[arg-type]
    return wire.SerializeToString()


def decode_nodes(data: bytes) -> tuple[NodeBatch, tuple[SequenceError, ...]]:
    """The groups that can be read, and an error for each that cannot.

    Raises:
        BadMessage: the columns do not add up, so that no group can be told from another.
    """
    wire = _parse(data)
    # `[:]` reads a column of the wire in half the time that iterating over it takes.
    counts = wire.node_counts[:]
    tokens, parent_ids = tuple(wire.tokens[:]), tuple(wire.parent_ids[:])
    confidences, sources = tuple(wire.confidences[:]), tuple(map(_SOURCES.get, wire.sources[:]))
    check_total("tokens", tokens, counts)
    check_total("parent_ids", parent_ids, counts)
    check_total("confidences", confidences, counts)
    check_total("sources", sources, counts)
    rows = zip(
        wire.seq_ids,
        wire.incarnations,
        wire.root_ids,
        wire.complete,
        split(tokens, counts),
        split(parent_ids, counts),
        split(confidences, counts),
        split(sources, counts),
        strict=True,
    )
    groups = tuple(starmap(NodeGroup, rows))
    try:
        # All groups at once: only a batch with a fault is looked at group by group.
        _check(tokens, confidences, sources)
    except InvalidField:
        return _sort_out(groups)
    return NodeBatch(groups), ()


def _sort_out(groups: Iterable[NodeGroup]) -> tuple[NodeBatch, tuple[SequenceError, ...]]:
    """The good groups, and an error for each of the others."""
    good: list[NodeGroup] = []
    errors: list[SequenceError] = []
    for group in groups:
        try:
            _check(group.tokens, group.confidences, group.sources)
        except InvalidField as error:
            errors.append(invalid_sequence(group.seq_id, group.incarnation, error))
        else:
            good.append(group)
    return NodeBatch(tuple(good)), tuple(errors)


def _parse(data: bytes) -> pb.NodeBatch:
    try:
        wire = pb.NodeBatch.FromString(data)
    except DecodeError:
        raise BadMessage("nodes", "a serialized NodeBatch") from None
    check_rows(
        len(wire.seq_ids),
        incarnations=wire.incarnations,
        node_counts=wire.node_counts,
        root_ids=wire.root_ids,
        complete=wire.complete,
    )
    return wire


def _check(
    tokens: tuple[int, ...], confidences: tuple[float, ...], sources: tuple[Source | None, ...]
) -> None:
    """Raises BadMessage if a value is out of range; None stands for an unknown source."""
    decode_tokens("tokens", tokens)
    # NaN can escape min and max, but not the sum.
    if confidences and not (
        min(confidences) >= 0.0 and max(confidences) <= 1.0 and isfinite(sum(confidences))
    ):
        raise BadMessage("confidences", "numbers from 0 to 1")
    if None in sources:
        names = ", ".join(source.name.lower() for source in Source)
        raise BadMessage("sources", f"one of {names}")
