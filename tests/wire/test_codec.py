"""What is encoded is decoded again; what breaks the contract is refused by the field's name."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import wire_values as values

from foredraft.v1 import common_pb2, draft_pb2, verify_pb2
from foredraft.wire.codec import draft, verify
from foredraft.wire.codec.nodes import decode_nodes, encode_nodes
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import (
    Commit,
    Commits,
    Nack,
    NodeBatch,
    NodeGroup,
    OpenSequences,
    SequenceErrors,
    Source,
    StepResult,
)


def resend(wire):
    """The message as its reader gets it."""
    return type(wire).FromString(wire.SerializeToString())


@given(values.OPENS | values.VERIFY_BUDGET | values.CLOSES)
def test_verify_request(request_value):
    decoded = verify.decode_request(resend(verify.encode_request(request_value)))
    assert decoded == (request_value, ())


@given(values.NODES)
def test_relayed_nodes(batch):
    decoded = verify.decode_request(resend(verify.encode_request(encode_nodes(batch))))
    assert decoded == (batch, ())


@given(values.STEP | st.builds(SequenceErrors, values.tuples(values.ERROR)))
def test_verify_response(response):
    assert verify.decode_response(resend(verify.encode_response(response))) == response


@given(values.OPENS | values.COMMITS | values.DRAFT_BUDGET | values.DRAFT_CLOSES)
def test_draft_request(request_value):
    decoded = draft.decode_request(resend(draft.encode_request(request_value)))
    assert decoded == (request_value, ())


@given(values.NODE_BLOCKS | st.builds(Nack, values.tuples(values.ERROR)))
def test_draft_response(response):
    assert draft.decode_response(resend(draft.encode_response(response))) == response


@given(values.WORKER, values.DRAFTER)
def test_handshake(worker, drafter):
    assert verify.decode_handshake(resend(verify.encode_handshake(worker))) == worker
    assert draft.decode_handshake(resend(draft.encode_handshake(drafter))) == drafter


@given(st.binary(max_size=64))
def test_random_bytes_never_raise_anything_else(data):
    with contextlib.suppress(BadMessage):
        decode_nodes(data)


GROUPS = (
    NodeGroup(1, 1, 10, False, (5, 6), (10, 11), (0.5, 0.25), (Source.MODEL, Source.SUFFIX)),
    NodeGroup(2, 1, 20, True, (7,), (20,), (1.0,), (Source.MODEL,)),
)


@pytest.mark.parametrize(
    ("column", "index", "value"),
    [
        ("tokens", 0, 2**31),
        ("confidences", 1, 1.5),
        ("confidences", 1, math.nan),
        ("confidences", 1, -math.inf),
        ("sources", 0, 0),
        ("sources", 0, 9),
    ],
)
def test_bad_node_costs_only_its_own_group(column, index, value):
    wire = common_pb2.NodeBatch.FromString(encode_nodes(NodeBatch(GROUPS)))
    getattr(wire, column)[index] = value
    batch, (error,) = decode_nodes(wire.SerializeToString())
    assert batch.groups == GROUPS[1:]
    assert (error.seq_id, error.incarnation, error.code) == (1, 1, 3)
    assert column in error.message


def test_each_bad_group_has_its_own_error():
    wire = common_pb2.NodeBatch.FromString(encode_nodes(NodeBatch((*GROUPS, *GROUPS))))
    wire.sources[0] = 9
    wire.confidences[-1] = 2.0
    batch, errors = decode_nodes(wire.SerializeToString())
    assert batch.groups == (GROUPS[1], GROUPS[0])
    assert [error.seq_id for error in errors] == [1, 2]
    assert "sources" in errors[0].message and "confidences" in errors[1].message


@pytest.mark.parametrize(
    "column",
    ["incarnations", "node_counts", "root_ids", "complete", "tokens", "parent_ids", "sources"],
)
def test_columns_that_do_not_add_up_cost_the_batch(column):
    wire = common_pb2.NodeBatch.FromString(encode_nodes(NodeBatch(GROUPS)))
    getattr(wire, column).pop()
    with pytest.raises(BadMessage):
        decode_nodes(wire.SerializeToString())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda wire: wire.prompt.append(2**31), "prompt"),
        (lambda wire: wire.ClearField("prompt"), "prompt"),
        (lambda wire: wire.committed.append(2**32 - 1), "committed"),
        (lambda wire: wire.ClearField("speculation"), "speculation"),
        (lambda wire: setattr(wire.params, "temperature", math.nan), "temperature"),
        (lambda wire: setattr(wire.params, "max_tokens", 0), "max_tokens"),
    ],
)
@given(opened=values.OPEN)
def test_bad_sequence_costs_only_itself(change, field, opened):
    wire = verify.encode_request(OpenSequences((opened, opened)))
    change(wire.open.sequences[0])
    decoded, (error,) = verify.decode_request(wire)
    assert decoded == OpenSequences((opened,))
    assert error.seq_id == opened.seq_id and error.code == 3 and field in error.message


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seq_ids", 3),
        ("positions", 3),
        ("token_counts", 1),
        ("tokens", 1),
        ("hits", True),
        ("finishes", 0),
        ("orphan_ids", 1),
    ],
)
def test_step_with_a_column_too_long(column, value):
    wire = verify.encode_response(StepResult(1, (Commit(1, 1, 4, (5, 6)),)))
    getattr(wire.step, column).append(value)
    with pytest.raises(BadMessage):
        verify.decode_response(wire)


@pytest.mark.parametrize(
    "column",
    ["seq_ids", "positions", "token_counts", "tokens", "accepted_counts", "orphan_ids"],
)
def test_commits_with_a_column_too_long(column):
    wire = draft.encode_request(Commits((Commit(1, 1, 4, (5, 6), orphans=(7,)),)))
    getattr(wire.commits, column).append(1)
    with pytest.raises(BadMessage):
        draft.decode_request(wire)


def test_step_with_an_unknown_finish_reason():
    wire = verify.encode_response(StepResult(1, (Commit(1, 1, 4, (5, 6)),)))
    wire.step.finishes[0] = 77
    with pytest.raises(BadMessage, match="finish_reason"):
        verify.decode_response(wire)


@pytest.mark.parametrize("promised", [-0.5, float("nan"), float("inf")])
def test_a_step_promises_a_number_of_tokens(promised):
    wire = verify.encode_response(StepResult(1, (Commit(1, 1, 4, (5, 6)),)))
    wire.step.promised = promised
    with pytest.raises(BadMessage, match="promised"):
        verify.decode_response(wire)


def test_log_probabilities_must_fit_the_tokens():
    wire = verify.encode_response(StepResult(1, (Commit(1, 1, 4, (5, 6)),)))
    wire.step.logprobs.add(seq_id=1, chosen=-0.5)
    with pytest.raises(BadMessage, match="logprobs"):
        verify.decode_response(wire)
    wire.step.logprobs.add(seq_id=1, chosen=-0.5)
    verify.decode_response(wire)
    wire.step.logprobs.add(seq_id=2, chosen=-0.5)
    with pytest.raises(BadMessage, match="logprobs"):
        verify.decode_response(wire)


@pytest.mark.parametrize(
    ("decode", "empty"),
    [
        (verify.decode_request, verify_pb2.VerifyRequest()),
        (verify.decode_response, verify_pb2.VerifyResponse()),
        (draft.decode_request, draft_pb2.ProposeRequest()),
        (draft.decode_response, draft_pb2.ProposeResponse()),
    ],
)
def test_empty_message_is_refused(decode, empty):
    with pytest.raises(BadMessage, match="message must be one of"):
        decode(empty)
