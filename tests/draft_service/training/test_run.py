"""A whole run on a tiny target: what it makes, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from support.draft_logits import draft_logits, known_ids, load_own_draft
from support.tiny_models import EOS, make_tiny_model
from transformers import AutoModelForCausalLM

from draft_service.training import trainer
from draft_service.training.answers import Answers
from draft_service.training.checkpoint import Checkpoint
from draft_service.training.progress_log import Line, ProgressLog
from draft_service.training.run import train_draft
from draft_service.training.settings import TrainSettings
from draft_service.training.stopped import Stopped
from foredraft.params import InvalidField

STEPS = 16


class StopAfter(Event):
    """Is set once it was asked ``checks`` times."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self._left = checks

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


@dataclass(frozen=True)
class Run:
    """``seeds``: of every use of chance, in order."""

    settings: TrainSettings
    said: list[str]
    seeds: list[int]

    @property
    def lines(self) -> list[Line]:
        return ProgressLog(self.settings.output / "training.jsonl").lines()


def settings_in(directory: Path, **changes: Any) -> TrainSettings:
    prompts = directory / "prompts.jsonl"
    if not prompts.exists():
        make_tiny_model(directory / "target", "qwen3", layers=3, hidden=32, tie=False, spread=0.4)
        rows = [json.dumps({"prompt": f"{number} {chr(97 + number % 26)}"}) for number in range(30)]
        prompts.write_text("\n".join(rows))
    settings = TrainSettings(
        target=directory / "target",
        output=directory / "draft",
        work=directory / "work",
        answers=directory / "answers",
        prompts=(prompts,),
        holdout=6,
        temperatures=(0.0, 1.0),
        max_answer=24,
        length=64,
        answer_batch=24,
        layers=(0, 2),
        batch=6,
        learning_rate=4e-3,
        steps=STEPS,
        vocabulary=100,
        log_steps=6,
        device="cpu",
    )
    return replace(settings, **changes)


def run(settings: TrainSettings, stop: Event | None = None) -> Run:
    said: list[str] = []
    seeds: list[int] = []

    def noting(make: Any) -> Any:
        return lambda *given: seeds.append(given[-1]) or make(*given)

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((random, "Random"), (trainer, "rows_of")):
            patch.setattr(module, name, noting(getattr(module, name)))
        train_draft(settings, stop or Event(), said.append)
    return Run(settings, said, seeds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing stopped."""
    return run(settings_in(tmp_path_factory.mktemp("whole")))


def test_training_lowers_the_loss_and_raises_agreement(whole: Run) -> None:
    first, second, *_, last = whole.lines
    assert [line.step for line in whole.lines] == [0, 6, 12, STEPS]
    assert first.loss is None
    assert second.loss is not None and last.loss is not None
    assert last.loss < second.loss - 0.3
    assert last.agreement.top1 > first.agreement.top1 + 0.1
    assert last.agreement.chain5 > first.agreement.chain5
    assert last.tokens > second.tokens > first.tokens == 0


def test_the_directory_is_read_by_the_library_and_by_the_engine(whole: Run) -> None:
    target, output = whole.settings.target, whole.settings.output
    model: Any = AutoModelForCausalLM.from_pretrained(output)
    theirs: Any = AutoModelForCausalLM.from_pretrained(target)
    assert torch.equal(model.lm_head.weight, theirs.lm_head.weight)
    assert torch.equal(model.model.embed_tokens.weight, theirs.model.embed_tokens.weight)
    before, after = theirs.model.layers[2], model.model.layers[1]
    assert not torch.equal(before.mlp.up_proj.weight, after.mlp.up_proj.weight)
    assert (output / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    draft = load_own_draft(output, dtype="float32")
    assert draft.info.eos_token_ids == (EOS,)
    tokens = list(range(20, 50))
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, :, known_ids(draft)]
    assert expected.shape[1] < draft.info.vocab_size
    found = draft_logits(draft, tokens)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


def test_the_vocabulary_holds_what_the_answers_say_most(whole: Run) -> None:
    ids = load_file(whole.settings.output / "draft_vocabulary.safetensors")["ids"].tolist()
    assert ids == sorted(set(ids))
    assert EOS in ids
    assert 100 <= len(ids) <= 103
    answers = Answers.joined(
        [Answers.load(file) for file in sorted(whole.settings.answers.glob("shard-*"))]
    )
    first, said = 0, []
    for length, asked in zip(answers.lengths, answers.prompt_lengths, strict=True):
        said += answers.tokens[first + asked : first + length].tolist()
        first += length
    counts = [said.count(token) for token in range(128)]
    assert min(counts[token] for token in ids if token > EOS) >= max(
        count for token, count in enumerate(counts) if token not in ids
    )


def test_no_two_uses_of_chance_share_their_numbers(whole: Run) -> None:
    prompts, held_out, shard, *windows = whole.seeds
    assert len({prompts, held_out, shard, windows[0], whole.settings.seed}) == 5
    assert windows == [windows[0]] * STEPS


def test_every_prompt_is_answered_at_every_temperature(whole: Run) -> None:
    shards = [Answers.load(file) for file in whole.settings.answers.glob("shard-*")]
    assert sum(len(shard.lengths) for shard in shards) == (30 - 6) * 2
    answers = Answers.joined(shards)
    assert (answers.temperatures == 1.0).sum() == 24
    assert (answers.lengths - answers.prompt_lengths <= 24).all()
    held_out = Answers.load(whole.settings.answers / "held_out.safetensors")
    assert len(held_out.lengths) == 6
    assert not held_out.temperatures.any()


def test_card_and_plot_tell_what_was_done(whole: Run) -> None:
    output, last = whole.settings.output, whole.lines[-1]
    card = (output / "README.md").read_text()
    for part in (
        "base_model: target",
        "Layers 0, 2 of the target's 3",
        f"`{whole.settings.prompts[0].parent.name}/prompts.jsonl`",
        "24 prompts",
        "48 answers",
        f"{last.tokens} answer tokens",
        f"| {last.agreement.top1:.4f} |",
        f"| {last.agreement.coupled2:.4f} |",
        "its licence holds",
    ):
        assert part in card
    assert (output / "training.png").read_bytes().startswith(b"\x89PNG")
    assert {file.stat().st_mode & 0o777 for file in output.iterdir()} == {0o644}
    assert any("tokens/s)" in line for line in whole.said)


def test_a_stopped_run_ends_with_the_same_bits(whole: Run, tmp_path: Path) -> None:
    """Stopped once while answers are made and twice while the draft is trained."""
    settings = settings_in(tmp_path)
    for checks, step in ((3, None), (9, 5), (6, 11)):
        with pytest.raises(Stopped):
            run(settings, StopAfter(checks))
        assert not settings.output.exists()
        kept = Checkpoint.load(settings.work / "checkpoint.pt", torch.device("cpu"))
        assert (kept and kept.step) == step
        if (log := settings.work / "training.jsonl").exists():  # what a killed run leaves behind
            ProgressLog(log).add(replace(whole.lines[-1], step=STEPS - 1))
    found = run(settings)
    name = "model.safetensors"
    ours, theirs = (output / name for output in (settings.output, whole.settings.output))
    assert ours.read_bytes() == theirs.read_bytes()
    assert [line.step for line in found.lines] == [line.step for line in whole.lines]
    assert [line.agreement for line in found.lines] == [line.agreement for line in whole.lines]


def test_other_settings_are_refused_by_name(whole: Run) -> None:
    settings = replace(whole.settings, output=whole.settings.output.with_name("other"))
    for option, change in (
        ("--learning-rate", {"learning_rate": 1e-3}),
        ("--layers", {"layers": (0, 1)}),
        ("--steps", {"steps": 99}),
        ("--temperatures", {"temperatures": (0.0,)}),
    ):
        with pytest.raises(InvalidField, match=f"^{option} must be as it was when .* another"):
            run(replace(settings, **change))


def test_options_that_cannot_be(whole: Run) -> None:
    settings = replace(whole.settings, output=whole.settings.output.with_name("other"))
    for text, change in (
        ("--output must be a directory that is not there yet", {"output": whole.settings.output}),
        ("--layers must be ascending numbers", {"layers": (0, 3)}),
        ("--length must be at most the target's context, 256", {"length": 300}),
        ("--max-answer must be less than --length, which is", {"max_answer": 64}),
        ("--prompts must be files with more than 30 prompts", {"holdout": 30}),
        ("--prompts must be a file to read", {"prompts": (Path("none.jsonl"),)}),
    ):
        with pytest.raises(InvalidField, match=f"^{text}"):
            run(replace(settings, **change))


def test_a_checkpoint_that_is_not_whole_is_named(whole: Run, tmp_path: Path) -> None:
    settings = replace(whole.settings, work=tmp_path / "work", output=tmp_path / "other")
    settings.work.mkdir()
    (settings.work / "checkpoint.pt").write_bytes(bytes(5000))
    told = r"^--work must be a folder whose checkpoint\.pt is whole; without that file training"
    with pytest.raises(InvalidField, match=told) as caught:
        run(settings)
    assert "weights_only" not in str(caught.value)


def test_answers_are_shared_by_runs_with_other_layers(whole: Run, tmp_path: Path) -> None:
    changes = {"layers": (1,), "steps": 1, "vocabulary": None}
    settings = replace(whole.settings, output=tmp_path / "other", work=tmp_path / "work", **changes)
    found = run(settings)
    assert not any("tokens/s)" in line for line in found.said)
    assert not (settings.output / "draft_vocabulary.safetensors").exists()


def test_a_loss_that_is_not_finite_ends_the_run(whole: Run, tmp_path: Path) -> None:
    changes = {"work": tmp_path / "work", "output": tmp_path / "other", "learning_rate": 1e30}
    with pytest.raises(InvalidField, match=r"^--learning-rate must be lower: after 8 steps"):
        run(replace(whole.settings, **changes))
