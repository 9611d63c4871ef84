"""From files of prompts to the token ids that a gateway would make of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from draft_service.training.settings import TrainSettings, derived_seed
from foredraft.chat_template import ChatTemplate
from foredraft.params import InvalidField
from foredraft.prompt_file import Chat, read_prompts
from foredraft.request import ChatMessage
from foredraft.tokenizer_hash import read_tokenizer

PROMPTS = "--prompts"
LEAST_ANSWER = 32  # tokens that a window must have room for behind a prompt
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptIds:
    """``held_out`` measure and are never trained on; ``too_long`` counts what was left out."""

    trained: tuple[Ids, ...]
    held_out: tuple[Ids, ...]
    too_long: int


def read_prompt_ids(settings: TrainSettings) -> PromptIds:
    """All prompts, each once, in an order that only the seed decides.

    Raises:
        InvalidField: a file cannot be read, a row is no prompt, or too few are left.
        UnsupportedModel: the target's tokenizer or template cannot be read.
    """
    chats = [
        chat
        for file in settings.prompts
        for chat in read_prompts(file, settings.limit_per_file, option=PROMPTS)
    ]
    found = dict.fromkeys(chat_ids(settings.target, chats))
    fitting = [ids for ids in found if len(ids) <= settings.length - LEAST_ANSWER]
    random.Random(derived_seed(settings.seed, "prompts")).shuffle(fitting)
    if len(fitting) <= settings.holdout:
        allowed = f"files with more than {settings.holdout} prompts (--holdout) of up to"
        room = settings.length - LEAST_ANSWER
        raise InvalidField(PROMPTS, f"{allowed} {room} tokens (--length): there are {len(fitting)}")
    return PromptIds(
        trained=tuple(fitting[settings.holdout :]),
        held_out=tuple(fitting[: settings.holdout]),
        too_long=len(found) - len(fitting),
    )


def chat_ids(target: Path, chats: Iterable[Chat]) -> list[Ids]:
    """What the gateway makes of each conversation.

    Raises:
        InvalidField: the target's chat template does not take one, or there is none.
        UnsupportedModel: its tokenizer or template cannot be read.
    """
    template, tokenizer = ChatTemplate(target), read_tokenizer(target)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        texts = [template.render(ChatMessage(**turn) for turn in chat) for chat in chats]
    except InvalidField as error:
        raise InvalidField(PROMPTS, f"chats with messages {error.allowed}") from None
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [tuple(encoding.ids) for encoding in encoded]
