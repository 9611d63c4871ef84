"""Codec of NodeBatch: the only message that the gateway passes on unread."""

from __future__ import annotations

from itertools import chain
from math import isfinite

from google.protobuf.message import DecodeError

from foredraft.params import InvalidField
from foredraft.v1 import common_pb2 as pb
from foredraft.wire.codec.common import (
    check_rows,
    check_total,
    decode_tokens,
    invalid_sequence,
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
        tokens=chain.from_iterable(group.tokens for group in groups),
        parent_ids=chain.from_iterable(group.parent_ids for group in groups),
        confidences=chain.from_iterable(group.confidences for group in groups),
        sources=chain.from_iterable(group.sources for group in groups),  # type: ignore[misc]
    )
    return wire.SerializeToString()


def decode_nodes(data: bytes) -> tuple[NodeBatch, tuple[SequenceError, ...]]:
    """The groups that can be read, and an error for each that cannot.

    Raises:
        BadMessage: the columns do not add up, so that no group can be told from another.
    """
    wire = _parse(data)
    # Slices of tuples are many times quicker than slices of the wire's own columns.
    tokens, parent_ids = tuple(wire.tokens), tuple(wire.parent_ids)
    confidences, sources = tuple(wire.confidences), tuple(wire.sources)
    names = zip(wire.seq_ids, wire.incarnations, wire.root_ids, wire.complete, strict=True)
    groups: list[NodeGroup] = []
    errors: list[SequenceError] = []
    start = 0
    for (seq_id, incarnation, root_id, complete), count in zip(
        names, wire.node_counts, strict=True
    ):
        span = slice(start, start + count)
        start += count
        try:
            group = NodeGroup(
                seq_id,
                incarnation,
                root_id,
                complete,
                decode_tokens("tokens", tokens[span]),
                parent_ids[span],
                _probabilities(confidences[span]),
                _sources(sources[span]),
            )
        except InvalidField as error:
            errors.append(invalid_sequence(seq_id, incarnation, error))
        else:
            groups.append(group)
    return NodeBatch(tuple(groups)), tuple(errors)


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
    for name in ("tokens", "parent_ids", "confidences", "sources"):
        check_total(name, getattr(wire, name), wire.node_counts)
    return wire


def _probabilities(values: tuple[float, ...]) -> tuple[float, ...]:
    # NaN can escape min and max, but not the sum.
    if values and not (min(values) >= 0.0 and max(values) <= 1.0 and isfinite(sum(values))):
        raise BadMessage("confidences", "numbers from 0 to 1")
    return values


def _sources(values: tuple[int, ...]) -> tuple[Source, ...]:
    try:
        return tuple([_SOURCES[value] for value in values])
    except KeyError:
        names = ", ".join(source.name.lower() for source in Source)
        raise BadMessage("sources", f"one of {names}") from None
