"""The model card of a trained draft."""

from __future__ import annotations

from dataclasses import dataclass

from draft_service.training.progress_log import Line
from draft_service.training.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card tells beside the settings.

    layers: those that were kept, of ``target_layers``. guessable: ids that the draft can guess, of
    ``vocabulary``. prompts, answers, answer_tokens: what there was to learn from. machine: what it
    was trained on.
    """

    layers: tuple[int, ...]
    target_layers: int
    guessable: int
    vocabulary: int
    prompts: int
    answers: int
    answer_tokens: int
    machine: str


def model_card(settings: TrainSettings, facts: Facts, last: Line) -> str:
    """Markdown. ``last`` is the final line of the log."""
    name, found = settings.target.name, last.agreement
    files = "\n".join(f"- `{file.parent.name}/{file.name}`" for file in settings.prompts)
    heats = ", ".join(f"{heat:g}" for heat in settings.temperatures)
    return f"""---
library_name: transformers
base_model: {name}
tags:
- speculative-decoding
---

# A draft for {name}

It guesses the next tokens of `{name}` for speculative decoding. By itself it is no useful model.
It was made by `foredraft train-draft`; `foredraft up --model {name} --draft DIR` serves with it.

## What it is

Layers {", ".join(map(str, facts.layers))} of the target's {facts.target_layers}, with its own
embedding and head, which were not trained. It can guess {facts.guessable} of {facts.vocabulary}
token ids; its inputs may be all of them. Windows of {settings.length} tokens were trained.

## Data

{facts.prompts} prompts of these files:

{files}

The target answered each of them itself at the temperatures {heats}, with at most
{settings.max_answer} tokens: {facts.answers} answers, {facts.answer_tokens} tokens. The draft
learned the target's whole distributions after every prefix of these answers.

## Training

{last.step} steps of {settings.batch} windows, {last.tokens} answer tokens, {last.seconds:.0f} s on
{facts.machine}. Seed {settings.seed}.

## Measured

On answers to {settings.holdout} prompts that were never trained on, the target's choices known up
to each position:

| figure | value |
|---|---|
| the target's greedy token is the best guess | {found.top1:.4f} |
| it is among the two best | {found.top2:.4f} |
| it is among the four best | {found.top4:.4f} |
| tokens per step, chains of 5 guesses | {found.chain5:.3f} |
| tokens per step, chains of 7 guesses | {found.chain7:.3f} |
| temperature 1, coupled: the best guess is right | {found.coupled1:.4f} |
| temperature 1, coupled: one of the two best is | {found.coupled2:.4f} |

## Licence

These weights are derived from those of `{name}`: its licence holds for them, too. The prompts have
the licences of their own sources; none of their text is part of this directory.
"""
