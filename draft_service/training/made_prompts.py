"""Prompts that a target makes up itself: it goes on where its chat template lets the user begin.

A model that was trained on conversations has learned what users say, too. What it makes up is
spread over the tasks that it knows as public files of prompts are not, and a draft has to guess on
all of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

from draft_service.training.answer_bar import AnswerBar
from draft_service.training.answerer import Answerer
from draft_service.training.pair import load_pair, use_device
from draft_service.training.prompt_ids import Ids
from draft_service.training.settings import derived_seed, write_whole
from draft_service.training.stopped import Stopped
from draft_service.training.within_memory import within_memory
from foredraft.chat_template import ChatTemplate
from foredraft.engine.model_config import check_whole, read_model_config
from foredraft.params import InvalidField
from foredraft.request import ChatMessage
from foredraft.tokenizer_hash import read_tokenizer

_MARK = "\N{HANGUL FILLER}what the user says\N{HANGUL FILLER}"  # in no template
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # what bytes that are no text decode to


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """What prompts are made.

    output: the file to write, a JSON object with ``prompt`` a line. count: how many are begun.
    begins: what the user is made to say first, in turn; "" leaves all to the target.
    temperatures: in turn, above 0. most: tokens of a prompt; what does not end in time is left out.
    """

    target: Path
    output: Path
    count: int
    begins: tuple[str, ...] = ("",)
    temperatures: tuple[float, ...] = (0.8, 1.0)
    most: int = 512
    batch: int = 768
    seed: int = 0
    device: str = "auto"


def make_prompts(settings: PromptSettings, stop: Event) -> int:
    """Write the file; how many prompts it has, none of them twice or empty.

    Raises:
        Stopped: ``stop`` was set; nothing is written.
        InvalidField: a setting cannot be used.
        UnsupportedModel: the engine does not run this target.
    """
    check_whole(settings.target)
    shape = read_model_config(settings.target)
    openings = opening_ids(settings.target, settings.begins)
    longest = max(map(len, openings))
    room = shape.context_length - longest
    if room < 1:
        raise InvalidField("--begin", f"shorter than the target's context, {shape.context_length}")
    if settings.most > room:
        raise InvalidField("--max-tokens", f"at most {room}, which --begin leaves of the context")
    length = longest + settings.most
    pair = load_pair(settings.target, (0,), use_device(settings.device), length)
    rows, eos = min(settings.batch, settings.count), shape.eos_token_ids
    with within_memory("--batch"):
        answerer = Answerer(pair.decoder, pair.head, eos, rows, length, settings.most, longest)
    tokenizer = read_tokenizer(settings.target)
    found: dict[str, None] = {}
    for begins, made in _batches(settings, openings, answerer, stop):
        for begin, ids in zip(begins, made, strict=True):
            if ids and ids[-1] in shape.eos_token_ids:
                text = begin + tokenizer.decode(ids[:-1], skip_special_tokens=True)
                found[text.replace(_BROKEN, "").strip()] = None
    found.pop("", None)
    if not found:
        raise InvalidField("--max-tokens", "more: no prompt ended within it")
    lines = (json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in found)
    write_whole(settings.output, "".join(lines).encode())
    return len(found)


def opening_ids(target: Path, begins: Sequence[str]) -> list[Ids]:
    """The first conversation up to where the user has said no more than each of ``begins``.

    Raises:
        InvalidField: the target has no chat template, or it changes what users say.
        UnsupportedModel: its tokenizer or template cannot be read.
    """
    chat = [ChatMessage("user", _MARK)]
    try:
        text, mark, _ = ChatTemplate(target).render(chat).partition(_MARK)
    except InvalidField:
        mark = ""
    if not mark:
        raise InvalidField("--target", "a model whose chat template says where users begin")
    encoded = read_tokenizer(target).encode_batch_fast(
        [text + begin for begin in begins], add_special_tokens=False
    )
    return [tuple(encoding.ids) for encoding in encoded]


def _batches(
    settings: PromptSettings, openings: Sequence[Ids], answerer: Answerer, stop: Event
) -> Iterator[tuple[list[str], list[list[int]]]]:
    """How the prompts of each batch begin, and the ids that the target goes on with."""
    chance = random.Random(derived_seed(settings.seed, "made prompts"))
    ways = len(settings.begins)
    with AnswerBar(settings.count) as bar:
        for first in range(0, settings.count, settings.batch):
            if stop.is_set():
                raise Stopped
            numbers = range(first, min(first + settings.batch, settings.count))
            heats = [
                settings.temperatures[number // ways % len(settings.temperatures)]
                for number in numbers
            ]
            made = answerer.answer(
                [openings[number % ways] for number in numbers],
                heats,
                chance.getrandbits(63),
                stop,
                partial(bar.move, len(numbers)),
            )
            bar.batch_done(len(numbers), sum(map(len, made)))
            yield [settings.begins[number % ways] for number in numbers], made
