"""What a target writes without any guess."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.engine.runner import ModelRunner, SequenceRows
from foredraft.engine.sampling import SampledRow, choose
from foredraft.params import SamplingParams


def decode(
    runner: ModelRunner, prompt: Sequence[int], count: int, params: SamplingParams, eos=()
) -> list[int]:
    """Plain decoding: the text that the target is bound to write, prompt included."""
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(prompt) + count))
    text = list(prompt)
    for start in range(0, len(prompt) - 1, runner.chunk):
        runner.prefill(blocks, text[start : min(start + runner.chunk, len(prompt) - 1)], start)
    for position in range(len(prompt), len(prompt) + count):
        rows = SequenceRows(blocks, position - 1, [text[-1]], [(position - 1,)])
        sampled = SampledRow(params, 0, position, len(prompt), tuple(text))
        text += choose(runner.forward([rows]), [sampled], eos)
    runner.kv.free(blocks)
    return text
