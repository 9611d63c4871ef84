"""The training loop: steps, evaluations, checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Event
from typing import NoReturn

import torch
from torch import Tensor
from tqdm import tqdm

from draft_service.training.batches import Windows, rows_of, to_device
from draft_service.training.checkpoint import Checkpoint
from draft_service.training.evaluation import Agreement, Examination
from draft_service.training.learning_rate import learning_rate
from draft_service.training.objective import distillation_loss
from draft_service.training.pair import Pair
from draft_service.training.progress_log import Line, ProgressLog
from draft_service.training.settings import TrainSettings, derived_seed
from draft_service.training.stopped import Stopped
from draft_service.training.target_memory import TargetMemory, room_on
from foredraft.params import InvalidField

logger = logging.getLogger(__name__)

_BETAS = (0.9, 0.95)
_LONGEST_GRADIENT = 1.0
_LOOK_EVERY = 8  # steps between two looks at the loss: each waits for the device


@dataclass(frozen=True, slots=True)
class Material:
    """trained: packed windows; held_out: one answer in a window; ids: what the draft can guess."""

    trained: Windows
    held_out: Windows
    ids: Tensor


class Trainer:
    """One run, from the start or from its checkpoint to its end."""

    def __init__(
        self, settings: TrainSettings, pair: Pair, material: Material, log: ProgressLog
    ) -> None:
        self._settings = settings
        self._pair = pair
        self._material = material
        self._log = log
        self._head = pair.head[material.ids]
        self._exam = Examination(pair, material.ids, material.held_out, settings.batch)
        self._target = TargetMemory(pair, material.trained, room_on(pair.device))
        self._free = {
            name: weight for name, weight in pair.draft.named_parameters() if weight.requires_grad
        }
        self._optimizer = _optimizer(self._free.values(), settings, pair.device)
        self._order = derived_seed(settings.seed, "windows")
        self._file = settings.work / "checkpoint.pt"
        self._step = self._tokens = 0
        self._before = 0.0  # seconds of earlier parts of this run
        self._started = self._saved = time.monotonic()
        self._losses: list[Tensor] = []

    def run(self, stop: Event) -> None:
        """Train to the end; what was logged and saved before is gone on with.

        Raises:
            Stopped: ``stop`` was set; there is a checkpoint of this very step.
            InvalidField: the checkpoint that is there cannot be read, or the loss is not finite.
        """
        self._resume()
        self._started = self._saved = time.monotonic()
        with self._bar() as bar:
            if not self._log.lines():
                self._evaluate(bar)
            while self._progress() < 1.0:
                if stop.is_set():
                    self._save()
                    raise Stopped
                self._train_step()
                self._show(bar)
                if self._step % self._settings.log_steps == 0:
                    self._evaluate(bar)
                if time.monotonic() - self._saved >= 60 * self._settings.checkpoint_minutes:
                    self._save()
            if self._log.lines()[-1].step != self._step:
                self._evaluate(bar)
            self._save()

    def _train_step(self) -> None:
        settings, pair, material = self._settings, self._pair, self._material
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(settings.learning_rate, self._progress(0.5))
        rows = rows_of(self._step, settings.batch, len(material.trained), self._order)
        batch = to_device(material.trained, rows, pair.device)
        target, draft = self._target.rows(rows, batch), pair.draft_rows(batch)
        loss = distillation_loss(draft, target, self._head)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._free.values(), _LONGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())
        self._step += 1
        self._tokens += len(batch.answered)

    def _progress(self, ahead: float = 0.0) -> float:
        """From 0 to 1: which part of the steps or of the time is over, ``ahead`` steps from now."""
        if self._settings.steps is not None:
            return (self._step + ahead) / self._settings.steps
        assert self._settings.minutes is not None  # one of both is there
        return self._seconds() / (60 * self._settings.minutes)

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._started

    def _evaluate(self, bar: tqdm[NoReturn]) -> None:
        agreement = self._exam.agreement()
        loss = float(torch.stack(self._losses).mean()) if self._losses else None
        self._losses.clear()
        self._log.add(Line(self._step, self._seconds(), self._tokens, loss, agreement))
        bar.set_postfix_str(_short(loss, agreement))
        logger.info("%d steps, %.0f s: %s", self._step, self._seconds(), _short(loss, agreement))

    def _save(self) -> None:
        weights = {name: weight.detach() for name, weight in self._free.items()}
        Checkpoint(
            weights, self._optimizer.state_dict(), self._step, self._seconds(), self._tokens
        ).save(self._file)
        self._saved = time.monotonic()

    def _resume(self) -> None:
        found = Checkpoint.load(self._file, self._pair.device)
        self._log.cut_after(-1 if found is None else found.step)
        if found is None:
            return
        with torch.no_grad():
            for name, weight in self._free.items():
                weight.copy_(found.weights[name])
        self._optimizer.load_state_dict(found.optimizer)
        self._step, self._before, self._tokens = found.step, found.seconds, found.tokens

    def _bar(self) -> tqdm[NoReturn]:
        settings = self._settings
        unit, total = ("step", float(settings.steps)) if settings.steps is not None else ("s", 0.0)
        if settings.minutes is not None:
            total = 60 * settings.minutes
        layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit} {postfix}"
        return tqdm(total=total, desc="training", unit=unit, bar_format=layout, disable=None)

    def _show(self, bar: tqdm[NoReturn]) -> None:
        if self._step % _LOOK_EVERY == 0:
            if not math.isfinite(self._losses[-1].item()):
                text = f"lower: after {self._step} steps the loss is no finite number"
                raise InvalidField("--learning-rate", text)
            assert bar.total is not None or bar.disable
            bar.n = min(1.0, self._progress()) * (bar.total or 0.0)
            bar.refresh()


def _optimizer(
    weights: Iterable[Tensor], settings: TrainSettings, device: torch.device
) -> torch.optim.AdamW:
    """Only matrices decay: norms and biases are few, and not meant to be small."""
    by_kind: dict[bool, list[Tensor]] = {True: [], False: []}
    for weight in weights:
        by_kind[weight.dim() > 1].append(weight)
    groups = [
        {"params": by_kind[True], "weight_decay": settings.weight_decay},
        {"params": by_kind[False], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=_BETAS, fused=device.type == "cuda"
    )


def _short(loss: float | None, agreement: Agreement) -> str:
    start = "" if loss is None else f"loss {loss:.3f}, "
    return f"{start}top-1 {agreement.top1:.3f}, chain of 5 {agreement.chain5:.2f}"
