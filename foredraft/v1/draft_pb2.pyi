from foredraft.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftServiceHandshakeRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class DraftServiceHandshakeResponse(_message.Message):
    __slots__ = ("worker", "keeps_texts")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    KEEPS_TEXTS_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerIdentity
    keeps_texts: bool
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerIdentity, _Mapping]] = ..., keeps_texts: _Optional[bool] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("open", "commits", "budget", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenDrafts
    commits: Commits
    budget: DraftBudget
    close: CloseDrafts
    def __init__(self, open: _Optional[_Union[OpenDrafts, _Mapping]] = ..., commits: _Optional[_Union[Commits, _Mapping]] = ..., budget: _Optional[_Union[DraftBudget, _Mapping]] = ..., close: _Optional[_Union[CloseDrafts, _Mapping]] = ...) -> None: ...

class OpenDrafts(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_common_pb2.OpenSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[_common_pb2.OpenSequence, _Mapping]]] = ...) -> None: ...

class CloseDrafts(_message.Message):
    __slots__ = ("sequences", "last")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_common_pb2.CloseSequence]
    last: Commits
    def __init__(self, sequences: _Optional[_Iterable[_Union[_common_pb2.CloseSequence, _Mapping]]] = ..., last: _Optional[_Union[Commits, _Mapping]] = ...) -> None: ...

class Commits(_message.Message):
    __slots__ = ("seq_ids", "incarnations", "positions", "token_counts", "tokens", "accepted_counts", "orphan_counts", "orphan_ids")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_IDS_FIELD_NUMBER: _ClassVar[int]
    seq_ids: _containers.RepeatedScalarFieldContainer[int]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    accepted_counts: _containers.RepeatedScalarFieldContainer[int]
    orphan_counts: _containers.RepeatedScalarFieldContainer[int]
    orphan_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seq_ids: _Optional[_Iterable[int]] = ..., incarnations: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., token_counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., accepted_counts: _Optional[_Iterable[int]] = ..., orphan_counts: _Optional[_Iterable[int]] = ..., orphan_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftBudget(_message.Message):
    __slots__ = ("max_nodes_per_sequence", "max_depth", "min_survival", "ahead_survival", "tokens_per_ms", "tokens_per_row")
    MAX_NODES_PER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MIN_SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    AHEAD_SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_ROW_FIELD_NUMBER: _ClassVar[int]
    max_nodes_per_sequence: int
    max_depth: int
    min_survival: float
    ahead_survival: float
    tokens_per_ms: _containers.RepeatedScalarFieldContainer[float]
    tokens_per_row: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, max_nodes_per_sequence: _Optional[int] = ..., max_depth: _Optional[int] = ..., min_survival: _Optional[float] = ..., ahead_survival: _Optional[float] = ..., tokens_per_ms: _Optional[_Iterable[float]] = ..., tokens_per_row: _Optional[_Iterable[float]] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("nodes", "nack")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    nodes: NodeBlocks
    nack: Nack
    def __init__(self, nodes: _Optional[_Union[NodeBlocks, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ...) -> None: ...

class NodeBlocks(_message.Message):
    __slots__ = ("blocks", "timings", "outcomes")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[NodeBlock]
    timings: DraftTimings
    outcomes: GuessOutcomes
    def __init__(self, blocks: _Optional[_Iterable[_Union[NodeBlock, _Mapping]]] = ..., timings: _Optional[_Union[DraftTimings, _Mapping]] = ..., outcomes: _Optional[_Union[GuessOutcomes, _Mapping]] = ...) -> None: ...

class NodeBlock(_message.Message):
    __slots__ = ("verify_worker", "nodes")
    VERIFY_WORKER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    verify_worker: int
    nodes: bytes
    def __init__(self, verify_worker: _Optional[int] = ..., nodes: _Optional[bytes] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[_common_pb2.SequenceError]
    def __init__(self, errors: _Optional[_Iterable[_Union[_common_pb2.SequenceError, _Mapping]]] = ...) -> None: ...

class GuessOutcomes(_message.Message):
    __slots__ = ("sources", "depths", "bins", "guesses", "predicted", "accepted")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DEPTHS_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    GUESSES_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedScalarFieldContainer[_common_pb2.Source]
    depths: _containers.RepeatedScalarFieldContainer[int]
    bins: _containers.RepeatedScalarFieldContainer[int]
    guesses: _containers.RepeatedScalarFieldContainer[int]
    predicted: _containers.RepeatedScalarFieldContainer[float]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sources: _Optional[_Iterable[_Union[_common_pb2.Source, str]]] = ..., depths: _Optional[_Iterable[int]] = ..., bins: _Optional[_Iterable[int]] = ..., guesses: _Optional[_Iterable[int]] = ..., predicted: _Optional[_Iterable[float]] = ..., accepted: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftTimings(_message.Message):
    __slots__ = ("suffix_us", "model_us", "model_passes")
    SUFFIX_US_FIELD_NUMBER: _ClassVar[int]
    MODEL_US_FIELD_NUMBER: _ClassVar[int]
    MODEL_PASSES_FIELD_NUMBER: _ClassVar[int]
    suffix_us: int
    model_us: int
    model_passes: int
    def __init__(self, suffix_us: _Optional[int] = ..., model_us: _Optional[int] = ..., model_passes: _Optional[int] = ...) -> None: ...
