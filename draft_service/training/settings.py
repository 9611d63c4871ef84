"""What a training run is told, and what of it must not change when it is resumed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.engine.model_config import BLOCK_FILE
from foredraft.params import InvalidField

_EDGE = 2**20


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Every choice of a run.

    target: a Hugging Face directory; output: the directory to make; work: checkpoints and log
        of this run; answers: the target's answers, which several runs may share.
    limit_per_file: prompts read of each file; None: all. holdout: prompts that are not trained on.
    temperatures: at which every prompt is answered. max_answer: most tokens of an answer.
    length: tokens of a window, and so of a prompt with its answer.
    answer_batch: answers that are made beside each other.
    layers: which of the target's the draft keeps; None: the first two and the last two.
    batch: windows in a step. steps or minutes: how long; one of them is None.
    vocabulary: how many token ids the draft can guess; None: all.
    log_steps: steps between two lines of the log.
    """

    target: Path
    output: Path
    work: Path
    answers: Path
    prompts: tuple[Path, ...]
    limit_per_file: int | None = None
    holdout: int = 96
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    max_answer: int = 256
    length: int = 512
    answer_batch: int = 768
    layers: tuple[int, ...] | None = None
    batch: int = 48
    learning_rate: float = 8e-4
    weight_decay: float = 0.01
    steps: int | None = None
    minutes: float | None = None
    vocabulary: int | None = None
    log_steps: int = 100
    checkpoint_minutes: float = 5.0
    seed: int = 0
    device: str = "auto"


def derived_seed(seed: int, purpose: str) -> int:
    """What begins a generator of random numbers: 64 bits of a SHA-256.

    Each use of chance has a purpose of its own, so that no two draw the same numbers, and none is
    a function of how much another one has drawn: a run that is resumed gets what it would have got.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big")


def answer_identity(settings: TrainSettings) -> dict[str, Any]:
    """What the answers are a function of, by the option that says it.

    Raises:
        InvalidField: a file of prompts cannot be read.
    """
    return {
        "--target": _target_digest(settings.target),
        "--prompts": [_prompts_digest(file) for file in settings.prompts],
        "--limit-per-file": settings.limit_per_file,
        "--holdout": settings.holdout,
        "--temperatures": list(settings.temperatures),
        "--max-answer": settings.max_answer,
        "--length": settings.length,
        "--answer-batch": settings.answer_batch,
        "--seed": settings.seed,
    }


def training_identity(settings: TrainSettings, layers: tuple[int, ...]) -> dict[str, Any]:
    """What the trained weights are a function of; ``layers`` are those that are kept."""
    return {
        **answer_identity(settings),
        "--layers": list(layers),
        "--batch": settings.batch,
        "--learning-rate": settings.learning_rate,
        "--weight-decay": settings.weight_decay,
        "--steps": settings.steps,
        "--minutes": settings.minutes,
        "--vocabulary": settings.vocabulary,
    }


def hold_to(file: Path, identity: dict[str, Any], elsewhere: str) -> None:
    """Note ``identity`` in ``file``, or compare it with what was noted there before.

    Raises:
        InvalidField: an option has changed; ``elsewhere`` is the one that names another place.
    """
    if not file.exists():
        write_whole(file, json.dumps(identity, indent=1).encode())
        return
    try:
        before: dict[str, Any] = dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidField(elsewhere, f"a place that this command made: {file}: {error}") from None
    for option, value in identity.items():
        if before.get(option) != value:
            was = json.dumps(before.get(option))
            allowed = f"as it was when {file.parent} was begun, {was}; or name another {elsewhere}"
            raise InvalidField(option, allowed)


def write_whole(file: Path, content: bytes) -> None:
    """Write a file such that it is there whole or not at all."""
    scratch = file.with_name(f".{file.name}.part")
    scratch.write_bytes(content)
    scratch.replace(file)


def _target_digest(directory: Path) -> str:
    """Configuration, tokenizer, and sizes and edges of the weights: weights may be very large.

    Not their blocks, the same once more, which may come and go.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        digest.update((directory / name).read_bytes())
    for file in sorted(set(directory.glob("*.safetensors")) - {directory / BLOCK_FILE}):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as content:
            digest.update(content.read(_EDGE))
            content.seek(max(0, size - _EDGE))
            digest.update(content.read())
    return f"{directory.name} {digest.hexdigest()[:16]}"


def _prompts_digest(file: Path) -> str:
    try:
        return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise InvalidField("--prompts", f"a file to read: {file}: {error.strerror}") from None
