"""The largest legal batches are far below the limit of a message: no vocabulary is ever sent."""

from __future__ import annotations

from support.doors import opening

from foredraft.wire.channel import MAX_MESSAGE_BYTES
from foredraft.wire.codec import draft, verify
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.messages import (
    Commit,
    Commits,
    NodeBatch,
    NodeGroup,
    OpenSequences,
    Source,
    StepResult,
    TokenLogprobs,
)

VOCAB, BATCH, TOKENS, GUESSES, BEST = 128_256, 8, 8_000, 16, 20
IDS = range(VOCAB - TOKENS, VOCAB)  # those that take most bytes
HUGE = 2**64 - 1


def test_eight_long_prompts_fit_many_times() -> None:
    sequences = tuple(opening(HUGE - i, tuple(IDS), temperature=1.0) for i in range(BATCH))
    for codec in (verify, draft):
        size = codec.encode_request(OpenSequences(sequences)).ByteSize()
        assert BATCH * TOKENS < size < MAX_MESSAGE_BYTES / 16


def test_a_step_grows_with_its_tokens_not_with_the_vocabulary() -> None:
    entry = TokenLogprobs(-1.0, tuple(IDS[:BEST]), (-2.0,) * BEST)
    commits = tuple(
        Commit(HUGE - i, 1, 8_000, tuple(IDS[: GUESSES + 1]), logprobs=(entry,) * (GUESSES + 1))
        for i in range(BATCH)
    )
    size = verify.encode_response(StepResult(1, commits)).ByteSize()
    assert size < BATCH * (GUESSES + 1) * (BEST + 2) * 16 < VOCAB
    assert draft.encode_request(Commits(commits)).ByteSize() < size


def test_guesses_grow_with_their_number() -> None:
    columns = tuple(IDS[:GUESSES]), (HUGE,) * GUESSES, (0.5,) * GUESSES, (Source.MODEL,) * GUESSES
    groups = tuple(NodeGroup(HUGE - i, 1, HUGE, True, *columns) for i in range(BATCH))
    assert len(encode_nodes(NodeBatch(groups))) < BATCH * (GUESSES + 2) * 24
