from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Speculation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_UNSPECIFIED: _ClassVar[Speculation]
    SPECULATION_OFF: _ClassVar[Speculation]
    SPECULATION_SUFFIX: _ClassVar[Speculation]
    SPECULATION_MODEL: _ClassVar[Speculation]
    SPECULATION_AUTO: _ClassVar[Speculation]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[Source]
    SOURCE_MODEL: _ClassVar[Source]
    SOURCE_SUFFIX: _ClassVar[Source]
SPECULATION_UNSPECIFIED: Speculation
SPECULATION_OFF: Speculation
SPECULATION_SUFFIX: Speculation
SPECULATION_MODEL: Speculation
SPECULATION_AUTO: Speculation
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
SOURCE_UNSPECIFIED: Source
SOURCE_MODEL: Source
SOURCE_SUFFIX: Source

class ModelInfo(_message.Message):
    __slots__ = ("model_id", "tokenizer_hash", "vocab_size", "context_length", "eos_token_ids", "dtype")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    tokenizer_hash: str
    vocab_size: int
    context_length: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, model_id: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_sequences", "max_nodes", "max_depth", "total_blocks")
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    max_sequences: int
    max_nodes: int
    max_depth: int
    total_blocks: int
    def __init__(self, max_sequences: _Optional[int] = ..., max_nodes: _Optional[int] = ..., max_depth: _Optional[int] = ..., total_blocks: _Optional[int] = ...) -> None: ...

class WorkerIdentity(_message.Message):
    __slots__ = ("protocol_version", "model", "limits")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: ModelInfo
    limits: Limits
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop_token_ids", "ignore_eos", "logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: int
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[int] = ...) -> None: ...

class OpenSequence(_message.Message):
    __slots__ = ("seq_id", "incarnation", "prompt", "committed", "params", "choice", "speculation", "traceparent", "verify_worker", "score_prompt", "tenant")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_WORKER_FIELD_NUMBER: _ClassVar[int]
    SCORE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    incarnation: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    params: SamplingParams
    choice: int
    speculation: Speculation
    traceparent: str
    verify_worker: int
    score_prompt: bool
    tenant: int
    def __init__(self, seq_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., params: _Optional[_Union[SamplingParams, _Mapping]] = ..., choice: _Optional[int] = ..., speculation: _Optional[_Union[Speculation, str]] = ..., traceparent: _Optional[str] = ..., verify_worker: _Optional[int] = ..., score_prompt: _Optional[bool] = ..., tenant: _Optional[int] = ...) -> None: ...

class CloseSequence(_message.Message):
    __slots__ = ("seq_id", "incarnation")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    incarnation: int
    def __init__(self, seq_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("seq_id", "incarnation", "code", "message")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    incarnation: int
    code: int
    message: str
    def __init__(self, seq_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class NodeBatch(_message.Message):
    __slots__ = ("seq_ids", "incarnations", "node_counts", "root_ids", "complete", "tokens", "parent_ids", "confidences", "sources")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ROOT_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENT_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    seq_ids: _containers.RepeatedScalarFieldContainer[int]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    node_counts: _containers.RepeatedScalarFieldContainer[int]
    root_ids: _containers.RepeatedScalarFieldContainer[int]
    complete: _containers.RepeatedScalarFieldContainer[bool]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parent_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: _containers.RepeatedScalarFieldContainer[float]
    sources: _containers.RepeatedScalarFieldContainer[Source]
    def __init__(self, seq_ids: _Optional[_Iterable[int]] = ..., incarnations: _Optional[_Iterable[int]] = ..., node_counts: _Optional[_Iterable[int]] = ..., root_ids: _Optional[_Iterable[int]] = ..., complete: _Optional[_Iterable[bool]] = ..., tokens: _Optional[_Iterable[int]] = ..., parent_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[_Iterable[float]] = ..., sources: _Optional[_Iterable[_Union[Source, str]]] = ...) -> None: ...
