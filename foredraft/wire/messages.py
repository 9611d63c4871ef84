"""Everything that crosses a process boundary, as plain values.

Services and the gateway work with these; only `codec` knows protobuf. Fields mean what the
comments in protos/ say; times are durations in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from foredraft.params import FinishReason, SamplingParams, Schedule, Speculation

PROTOCOL_VERSION = 1
OUTCOME_DEPTHS = 8  # guesses that were made deeper count with the deepest
OUTCOME_BINS = 10  # of equal width, of confidence


class Source(IntEnum):
    """Who made a guess. Values equal those on the wire."""

    MODEL = 1
    SUFFIX = 2

    __hash__ = int.__hash__  # an enum's own is Python code, and there is a look-up per guess


@dataclass(frozen=True, slots=True)
class ModelInfo:
    model_id: str
    tokenizer_hash: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    max_sequences: int
    max_nodes: int
    max_depth: int
    total_blocks: int = 0


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """``keeps_texts``: of a drafter to which finished requests are of use."""

    model: ModelInfo
    limits: Limits
    protocol_version: int = PROTOCOL_VERSION
    keeps_texts: bool = False


@dataclass(frozen=True, slots=True)
class OpenSequence:
    seq_id: int
    incarnation: int
    prompt: tuple[int, ...]
    params: SamplingParams
    committed: tuple[int, ...] = ()
    choice: int = 0
    speculation: Speculation = Speculation.AUTO
    traceparent: str = ""
    verify_worker: int = 0
    score_prompt: bool = False
    tenant: int = 0


@dataclass(frozen=True, slots=True)
class OpenSequences:
    sequences: tuple[OpenSequence, ...]


@dataclass(frozen=True, slots=True)
class CloseSequence:
    seq_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class CloseSequences:
    sequences: tuple[CloseSequence, ...]


@dataclass(frozen=True, slots=True)
class SequenceError:
    seq_id: int
    incarnation: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class SequenceErrors:
    errors: tuple[SequenceError, ...]


class NodeGroup(NamedTuple):
    """Guesses for one sequence; a parent stands before its children."""

    seq_id: int
    incarnation: int
    root_id: int
    complete: bool
    tokens: tuple[int, ...] = ()
    parent_ids: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeBatch:
    groups: tuple[NodeGroup, ...]


@dataclass(frozen=True, slots=True)
class VerifyBudget:
    max_nodes: int
    max_hold_us: int
    drafting: bool
    schedule: Schedule = Schedule.AUTO


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    chosen: float
    top_ids: tuple[int, ...] = ()
    top_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Columns over a prompt's tokens but the first; the best of each place follow one another."""

    chosen: tuple[float, ...] = ()
    top_ids: tuple[int, ...] = ()
    top_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """What one step made final for one sequence.

    ``logprobs`` has one entry per token, or none if the sequence did not ask. ``cached`` are the
    prompt tokens whose KV was known before; only the first commit of a sequence tells them, and
    ``prompt``, if it was to be scored.
    """

    seq_id: int
    incarnation: int
    position: int
    tokens: tuple[int, ...]
    verified: int = 0
    accepted: int = 0
    hit: bool = False
    finish: FinishReason | None = None
    orphans: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached: int = 0
    prompt: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepTimings:
    """``period_us``: since the end of the step before; 0 if something else came between."""

    held_us: int = 0
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    commit_us: int = 0
    hold_limit_us: int = 0
    period_us: int = 0
    row_us: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step, for one stream.

    promised: tokens beyond one per sequence that its nodes were thought to bring.
    drafter_told: whoever guesses for these sequences knows of the commits already.
    """

    step: int
    commits: tuple[Commit, ...]
    timings: StepTimings = field(default_factory=StepTimings)
    free_blocks: int = 0
    promised: float = 0.0
    drafter_told: bool = False


@dataclass(frozen=True, slots=True)
class Commits:
    """The part of a step's commits that a drafter needs (finish and logprobs stay behind)."""

    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class CloseDrafts:
    """``last``: commits of these sequences that the drafter was not told before."""

    sequences: tuple[CloseSequence, ...]
    last: tuple[Commit, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftBudget:
    max_nodes_per_sequence: int
    max_depth: int
    min_survival: float
    ahead_survival: float = 0.0
    tokens_per_ms: tuple[float, ...] = ()
    tokens_per_row: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftTimings:
    suffix_us: int = 0
    model_us: int = 0
    model_passes: int = 0

    def __add__(self, other: DraftTimings) -> DraftTimings:
        return DraftTimings(
            self.suffix_us + other.suffix_us,
            self.model_us + other.model_us,
            self.model_passes + other.model_passes,
        )


@dataclass(frozen=True, slots=True)
class GuessOutcomes:
    """What became of guesses of one source, depth and tenth of confidence."""

    source: Source
    depth: int
    bin: int
    guesses: int
    predicted: float
    accepted: int


@dataclass(frozen=True, slots=True)
class NodeBlock:
    verify_worker: int
    nodes: bytes


@dataclass(frozen=True, slots=True)
class NodeBlocks:
    blocks: tuple[NodeBlock, ...]
    timings: DraftTimings = field(default_factory=DraftTimings)
    outcomes: tuple[GuessOutcomes, ...] = ()


@dataclass(frozen=True, slots=True)
class Nack:
    errors: tuple[SequenceError, ...]
