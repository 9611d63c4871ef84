"""Codec of protos/foredraft/v1/common.proto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import TypeVar

import grpc

from foredraft.params import (
    FinishReason,
    InvalidField,
    SamplingParams,
    Speculation,
    check_params,
)
from foredraft.v1 import common_pb2 as pb
from foredraft.wire.errors import BadMessage, code_number
from foredraft.wire.messages import (
    CloseSequence,
    Limits,
    ModelInfo,
    OpenSequence,
    SequenceError,
    WorkerIdentity,
)

TOKEN_LIMIT = 2**31

E = TypeVar("E", bound=IntEnum)
T = TypeVar("T")
_INVALID = code_number(grpc.StatusCode.INVALID_ARGUMENT)


def decode_tokens(name: str, tokens: Iterable[int]) -> tuple[int, ...]:
    """Token ids, each below 2^31 (a model's vocabulary is checked by its worker)."""
    decoded = tuple(tokens)
    if decoded and max(decoded) >= TOKEN_LIMIT:
        raise BadMessage(name, f"token ids from 0 to {TOKEN_LIMIT - 1}")
    return decoded


def decode_enum(name: str, kind: type[E], value: int) -> E:
    """A member of ``kind``; an unspecified or unknown number is refused."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(member.name.lower() for member in kind)
        raise BadMessage(name, f"one of {names}") from None


def decode_finish(value: int) -> FinishReason | None:
    """Unspecified means that the sequence goes on."""
    return decode_enum("finish_reason", FinishReason, value) if value else None


def check_rows(rows: int, **columns: Sequence[object]) -> None:
    """Raises BadMessage if a column has another number of rows than the message."""
    for name, column in columns.items():
        if len(column) != rows:
            raise BadMessage(name, f"a column of {rows} rows, one per sequence")


def check_total(name: str, values: Sequence[object], counts: Iterable[int]) -> None:
    """Raises BadMessage if a flat column is not as long as its counts say."""
    total = sum(counts)
    if len(values) != total:
        raise BadMessage(name, f"{total} values long, as its counts say")


def split(values: tuple[T, ...], counts: Iterable[int]) -> Iterator[tuple[T, ...]]:
    """A flat column, already checked against its counts, cut into one piece per sequence.

    ``values`` is a tuple because slices of the wire's own columns are many times slower.
    """
    start = 0
    for count in counts:
        end = start + count
        yield values[start:end]
        start = end


def encode_worker(worker: WorkerIdentity) -> pb.WorkerIdentity:
    return pb.WorkerIdentity(
        protocol_version=worker.protocol_version,
        model=encode_model(worker.model),
        limits=pb.Limits(
            max_sequences=worker.limits.max_sequences,
            max_nodes=worker.limits.max_nodes,
            max_depth=worker.limits.max_depth,
            total_blocks=worker.limits.total_blocks,
        ),
    )


def decode_worker(wire: pb.WorkerIdentity) -> WorkerIdentity:
    limits = wire.limits
    return WorkerIdentity(
        model=decode_model(wire.model),
        limits=Limits(
            limits.max_sequences, limits.max_nodes, limits.max_depth, limits.total_blocks
        ),
        protocol_version=wire.protocol_version,
    )


def encode_model(model: ModelInfo) -> pb.ModelInfo:
    return pb.ModelInfo(
        model_id=model.model_id,
        tokenizer_hash=model.tokenizer_hash,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        eos_token_ids=model.eos_token_ids,
        dtype=model.dtype,
    )


def decode_model(wire: pb.ModelInfo) -> ModelInfo:
    return ModelInfo(
        model_id=wire.model_id,
        tokenizer_hash=wire.tokenizer_hash,
        vocab_size=wire.vocab_size,
        context_length=wire.context_length,
        eos_token_ids=decode_tokens("eos_token_ids", wire.eos_token_ids),
        dtype=wire.dtype,
    )


def encode_params(params: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        seed=params.seed,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs,
    )


def decode_params(wire: pb.SamplingParams) -> SamplingParams:
    """Raises InvalidField if a value is out of range."""
    return check_params(
        SamplingParams(
            max_tokens=wire.max_tokens,
            min_tokens=wire.min_tokens,
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            min_p=wire.min_p,
            repetition_penalty=wire.repetition_penalty,
            presence_penalty=wire.presence_penalty,
            frequency_penalty=wire.frequency_penalty,
            logit_bias=MappingProxyType(dict(wire.logit_bias)),
            seed=wire.seed,
            stop_token_ids=tuple(wire.stop_token_ids),
            ignore_eos=wire.ignore_eos,
            logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        )
    )


def encode_open(sequence: OpenSequence) -> pb.OpenSequence:
    return pb.OpenSequence(
        seq_id=sequence.seq_id,
        incarnation=sequence.incarnation,
        prompt=sequence.prompt,
        committed=sequence.committed,
        params=encode_params(sequence.params),
        choice=sequence.choice,
        speculation=int(sequence.speculation),  # type: ignore[arg-type]
        traceparent=sequence.traceparent,
        verify_worker=sequence.verify_worker,
        score_prompt=sequence.score_prompt,
        tenant=sequence.tenant,
    )


def decode_open(wire: pb.OpenSequence) -> OpenSequence:
    """Raises InvalidField if the sequence cannot be opened as it stands."""
    prompt = decode_tokens("prompt", wire.prompt)
    if not prompt:
        raise BadMessage("prompt", "at least one token")
    params = decode_params(wire.params)
    committed = decode_tokens("committed", wire.committed)
    if len(committed) >= params.max_tokens:
        raise BadMessage("committed", f"fewer tokens than max_tokens, which is {params.max_tokens}")
    return OpenSequence(
        seq_id=wire.seq_id,
        incarnation=wire.incarnation,
        prompt=prompt,
        params=params,
        committed=committed,
        choice=wire.choice,
        speculation=decode_enum("speculation", Speculation, wire.speculation),
        traceparent=wire.traceparent,
        verify_worker=wire.verify_worker,
        score_prompt=wire.score_prompt,
        tenant=wire.tenant,
    )


def decode_opens(
    wires: Iterable[pb.OpenSequence],
) -> tuple[tuple[OpenSequence, ...], tuple[SequenceError, ...]]:
    """The sequences that can be opened, and an error for each that cannot."""
    opened: list[OpenSequence] = []
    errors: list[SequenceError] = []
    for wire in wires:
        try:
            opened.append(decode_open(wire))
        except InvalidField as error:
            errors.append(invalid_sequence(wire.seq_id, wire.incarnation, error))
    return tuple(opened), tuple(errors)


def encode_closes(sequences: Iterable[CloseSequence]) -> list[pb.CloseSequence]:
    return [pb.CloseSequence(seq_id=s.seq_id, incarnation=s.incarnation) for s in sequences]


def decode_closes(wires: Iterable[pb.CloseSequence]) -> tuple[CloseSequence, ...]:
    return tuple(CloseSequence(wire.seq_id, wire.incarnation) for wire in wires)


def encode_errors(errors: Iterable[SequenceError]) -> list[pb.SequenceError]:
    return [
        pb.SequenceError(
            seq_id=error.seq_id,
            incarnation=error.incarnation,
            code=error.code,
            message=error.message,
        )
        for error in errors
    ]


def decode_errors(wires: Iterable[pb.SequenceError]) -> tuple[SequenceError, ...]:
    return tuple(
        SequenceError(wire.seq_id, wire.incarnation, wire.code, wire.message) for wire in wires
    )


def invalid_sequence(seq_id: int, incarnation: int, error: InvalidField) -> SequenceError:
    """An INVALID_ARGUMENT for one sequence."""
    return SequenceError(seq_id, incarnation, _INVALID, str(error))
