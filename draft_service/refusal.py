"""What a drafter cannot follow, told per sequence."""

from __future__ import annotations

import grpc

from draft_service.sequence import DraftSequence
from foredraft.params import InvalidField, check_tokens
from foredraft.wire.errors import code_number
from foredraft.wire.messages import Commit, Limits, ModelInfo, OpenSequence, SequenceError


def no_room(opened: OpenSequence, limits: Limits) -> SequenceError:
    text = f"max_sequences is {limits.max_sequences}"
    return _refusal(opened, grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def bad_opening(opened: OpenSequence, target: ModelInfo) -> SequenceError | None:
    """The fault of an opening, if it has one."""
    try:
        check_tokens("prompt", opened.prompt, target.vocab_size)
        if opened.committed:
            check_tokens("committed", opened.committed, target.vocab_size)
        if len(opened.prompt) + len(opened.committed) >= target.context_length:
            allowed = f"shorter than the context of {target.context_length} tokens"
            raise InvalidField("prompt", allowed)
    except InvalidField as error:
        return _refusal(opened, grpc.StatusCode.INVALID_ARGUMENT, str(error))
    return None


def bad_commit(commit: Commit, sequence: DraftSequence, target: ModelInfo) -> SequenceError | None:
    """The fault of a commit, if it has one: then its sequence has to be opened again."""
    try:
        if commit.tokens:
            check_tokens("tokens", commit.tokens, target.vocab_size)
    except InvalidField as error:
        return _refusal(commit, grpc.StatusCode.INVALID_ARGUMENT, str(error))
    if not sequence.follows(commit.position, commit.tokens):
        text = f"the commit does not continue the {len(sequence.tokens)} tokens known here"
        return _refusal(commit, grpc.StatusCode.FAILED_PRECONDITION, text)
    return None


def _refusal(sequence: OpenSequence | Commit, code: grpc.StatusCode, text: str) -> SequenceError:
    return SequenceError(sequence.seq_id, sequence.incarnation, code_number(code), text)
