"""A prompt into the KV, chunk by chunk, and behind it what was committed before."""

from __future__ import annotations

from foredraft.engine.runner import Runner, SequenceRows
from verify_service.sequence import VerifySequence

REPLAY_ROWS = 64


def feed(runner: Runner, sequence: VerifySequence) -> None:
    """Run some of the prompt, or one chain of tokens that were committed before.

    The prompt's last token was a root when the sequence first ran, so it is a row of a chain:
    a prefill may round it differently.
    """
    prompt_end = len(sequence.opened.prompt) - 1
    start = sequence.fed
    if start < prompt_end:
        most = runner.chunk if sequence.scoring else runner.longest
        end = min(start + most, prompt_end)
        chunk = sequence.blocks, sequence.tokens[start:end], start
        if sequence.scoring:
            sequence.score(start, runner.prefill_scored(*chunk))
        else:
            runner.prefill(*chunk)
    else:
        end = min(start + REPLAY_ROWS, len(sequence.tokens) - 1)
        paths = [tuple(range(start, slot + 1)) for slot in range(start, end)]
        runner.forward([SequenceRows(sequence.blocks, start, sequence.tokens[start:end], paths)])
    sequence.fed = end
