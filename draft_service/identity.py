"""What the draft service says it is, and whether a draft model fits the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from foredraft.engine.model_config import check_whole, read_model_config
from foredraft.engine.model_info import read_model_info
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.messages import ModelInfo


def read_target(directory: Path) -> ModelInfo:
    """The served model's identity, from its small files alone.

    Raises:
        UnsupportedModel: the directory's small files are not those of a model that can be run, or
            it is a draft that guesses some tokens only.
    """
    check_whole(directory)
    return read_model_info(directory, read_model_config(directory))


def mismatch(draft: Path, target: ModelInfo) -> str | None:
    """Why the model in ``draft`` cannot guess for ``target``; None if it can.

    Row counts may differ (padding), and so may the context: only the ids must mean the same.

    Raises:
        UnsupportedModel: the draft's tokenizer cannot be read.
    """
    if tokenizer_identity(draft).hash != target.tokenizer_hash:
        return f"the tokenizer of draft {draft.name} is not that of target {target.model_id}"
    return None


def announced(target: ModelInfo, draft: ModelInfo | None) -> ModelInfo:
    """What a handshake shows: the target's vocabulary, the draft's name if there is one."""
    if draft is None:
        return target
    return replace(target, model_id=draft.model_id, dtype=draft.dtype)
