from foredraft.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Schedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_UNSPECIFIED: _ClassVar[Schedule]
    SCHEDULE_AUTO: _ClassVar[Schedule]
    SCHEDULE_SERIAL: _ClassVar[Schedule]
    SCHEDULE_HELD: _ClassVar[Schedule]
    SCHEDULE_FREE: _ClassVar[Schedule]
SCHEDULE_UNSPECIFIED: Schedule
SCHEDULE_AUTO: Schedule
SCHEDULE_SERIAL: Schedule
SCHEDULE_HELD: Schedule
SCHEDULE_FREE: Schedule

class VerifyServiceHandshakeRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class VerifyServiceHandshakeResponse(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerIdentity
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerIdentity, _Mapping]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("open", "nodes", "budget", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenSequences
    nodes: bytes
    budget: VerifyBudget
    close: CloseSequences
    def __init__(self, open: _Optional[_Union[OpenSequences, _Mapping]] = ..., nodes: _Optional[bytes] = ..., budget: _Optional[_Union[VerifyBudget, _Mapping]] = ..., close: _Optional[_Union[CloseSequences, _Mapping]] = ...) -> None: ...

class OpenSequences(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_common_pb2.OpenSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[_common_pb2.OpenSequence, _Mapping]]] = ...) -> None: ...

class CloseSequences(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_common_pb2.CloseSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[_common_pb2.CloseSequence, _Mapping]]] = ...) -> None: ...

class VerifyBudget(_message.Message):
    __slots__ = ("max_nodes", "max_hold_us", "drafting", "schedule")
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_HOLD_US_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    max_hold_us: int
    drafting: bool
    schedule: Schedule
    def __init__(self, max_nodes: _Optional[int] = ..., max_hold_us: _Optional[int] = ..., drafting: _Optional[bool] = ..., schedule: _Optional[_Union[Schedule, str]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("step", "errors")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    step: StepResult
    errors: SequenceErrors
    def __init__(self, step: _Optional[_Union[StepResult, _Mapping]] = ..., errors: _Optional[_Union[SequenceErrors, _Mapping]] = ...) -> None: ...

class SequenceErrors(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_common_pb2.SequenceError]
    def __init__(self, errors: _Optional[_Iterable[_Union[_common_pb2.SequenceError, _Mapping]]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "seq_ids", "incarnations", "positions", "token_counts", "tokens", "verified_counts", "accepted_counts", "hits", "finishes", "orphan_counts", "orphan_ids", "logprobs", "timings", "free_blocks", "cached_counts", "promised", "prompt_logprobs", "drafter_told")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_TOLD_FIELD_NUMBER: _ClassVar[int]
    step: int
    seq_ids: _containers.RepeatedScalarFieldContainer[int]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    verified_counts: _containers.RepeatedScalarFieldContainer[int]
    accepted_counts: _containers.RepeatedScalarFieldContainer[int]
    hits: _containers.RepeatedScalarFieldContainer[bool]
    finishes: _containers.RepeatedScalarFieldContainer[_common_pb2.FinishReason]
    orphan_counts: _containers.RepeatedScalarFieldContainer[int]
    orphan_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    timings: StepTimings
    free_blocks: int
    cached_counts: _containers.RepeatedScalarFieldContainer[int]
    promised: float
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    drafter_told: bool
    def __init__(self, step: _Optional[int] = ..., seq_ids: _Optional[_Iterable[int]] = ..., incarnations: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., token_counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., verified_counts: _Optional[_Iterable[int]] = ..., accepted_counts: _Optional[_Iterable[int]] = ..., hits: _Optional[_Iterable[bool]] = ..., finishes: _Optional[_Iterable[_Union[_common_pb2.FinishReason, str]]] = ..., orphan_counts: _Optional[_Iterable[int]] = ..., orphan_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., free_blocks: _Optional[int] = ..., cached_counts: _Optional[_Iterable[int]] = ..., promised: _Optional[float] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., drafter_told: _Optional[bool] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("seq_id", "chosen", "top_ids", "top_values")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_VALUES_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    chosen: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, seq_id: _Optional[int] = ..., chosen: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_values: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("seq_id", "chosen", "top_ids", "top_values")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_VALUES_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    chosen: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, seq_id: _Optional[int] = ..., chosen: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_values: _Optional[_Iterable[float]] = ...) -> None: ...

class StepTimings(_message.Message):
    __slots__ = ("held_us", "prepare_us", "forward_us", "sample_us", "commit_us", "hold_limit_us", "period_us", "row_us")
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    PREPARE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    COMMIT_US_FIELD_NUMBER: _ClassVar[int]
    HOLD_LIMIT_US_FIELD_NUMBER: _ClassVar[int]
    PERIOD_US_FIELD_NUMBER: _ClassVar[int]
    ROW_US_FIELD_NUMBER: _ClassVar[int]
    held_us: int
    prepare_us: int
    forward_us: int
    sample_us: int
    commit_us: int
    hold_limit_us: int
    period_us: int
    row_us: int
    def __init__(self, held_us: _Optional[int] = ..., prepare_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., commit_us: _Optional[int] = ..., hold_limit_us: _Optional[int] = ..., period_us: _Optional[int] = ..., row_us: _Optional[int] = ...) -> None: ...
