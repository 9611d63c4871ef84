"""The stand-in: as sensitive to misplaced entries as a model, and right as often as it is told."""

from __future__ import annotations

import random

import pytest
import torch

from foredraft.config import FakeEngine
from foredraft.engine.fake import FakeRunner
from foredraft.engine.runner import SequenceRows
from foredraft.wire.messages import ModelInfo

INFO = ModelInfo("stand-in", "hash", vocab_size=259, context_length=512, eos_token_ids=(2,))
PROMPT = random.Random(1).choices(range(3, 259), k=70)


def prefilled(runner: FakeRunner, tokens: list[int]) -> list[int]:
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(tokens) + 64))
    for start in range(0, len(tokens), runner.chunk):
        runner.prefill(blocks, tokens[start : start + runner.chunk], start)
    return blocks


def plain(runner: FakeRunner, count: int) -> list[int]:
    blocks, tokens = prefilled(runner, PROMPT[:-1]), list(PROMPT)
    for _ in range(count):
        last = len(tokens) - 1
        logits = runner.forward([SequenceRows(blocks, last, tokens[-1:], [(last,)])])
        tokens.append(int(logits.argmax()))
    return tokens[len(PROMPT) :]


def test_a_tree_and_its_accepted_path_continue_as_plain_decoding_does() -> None:
    runner = FakeRunner(INFO, FakeEngine(0.0))
    said = plain(runner, 6)
    blocks, last = prefilled(runner, PROMPT[:-1]), len(PROMPT) - 1
    rows = [PROMPT[-1], 5, said[0], 7, said[1]]
    paths = [(last,), (last, last + 1), (last, last + 2), (last, last + 1, last + 3)]
    paths.append((last, last + 2, last + 4))
    logits = runner.forward([SequenceRows(blocks, last, rows, paths)])
    assert logits[[0, 2, 4]].argmax(-1).tolist() == said[:3]
    runner.move(blocks, [(last, last), (last + 2, last + 1), (last + 4, last + 2)])
    rest = runner.forward([SequenceRows(blocks, last + 3, said[2:3], [(last + 3,)])])
    assert int(rest.argmax()) == said[3]


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.754, 1.0])
def test_the_targets_token_is_among_the_drafts_as_often_as_told(acceptance: float) -> None:
    target, draft = FakeRunner(INFO, FakeEngine(0.0)), FakeRunner(INFO, FakeEngine(0.0, acceptance))
    tokens = random.Random(2).choices(range(3, 259), k=2000)
    first = second = 0
    for runner_tokens in (tokens[start : start + 40] for start in range(0, 2000, 40)):
        rows = [tuple(range(row + 1)) for row in range(40)]
        feeds = [
            SequenceRows(prefilled(runner, []), 0, runner_tokens, rows)
            for runner in (target, draft)
        ]
        right = target.forward(feeds[:1]).argmax(-1)
        best = torch.topk(draft.forward(feeds[1:]), 2).indices
        first += int((best[:, 0] == right).sum())
        second += int((best == right[:, None]).any(-1).sum())
    assert first / 2000 == pytest.approx(min(acceptance, 0.754 / 0.886), abs=0.035)
    assert second >= first
    if acceptance == 0.754:
        assert second / 2000 == pytest.approx(0.838, abs=0.03)


def test_missing_entries_are_found_out() -> None:
    runner = FakeRunner(INFO, FakeEngine(0.0))
    blocks = prefilled(runner, PROMPT[:3])
    with pytest.raises(KeyError):
        runner.forward([SequenceRows(blocks, 9, [5], [(9,)])])
