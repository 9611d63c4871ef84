"""What a draft's engine computes before it guesses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draft_service.engine.draft_engine import Extension
from draft_service.engine.lean import LeanEngine
from draft_service.engine.rows import rows_of
from foredraft.config import EngineConfig
from foredraft.engine.model_config import read_model_config
from foredraft.engine.model_info import read_model_info


def load_own_draft(directory: Path, **fields: Any) -> LeanEngine:
    """The model in ``directory`` as a draft for itself."""
    target = read_model_info(directory, read_model_config(directory))
    return LeanEngine.load(EngineConfig(directory, **{"kv_memory_mib": 1} | fields), target)


def known_ids(engine: LeanEngine) -> list[int]:
    """What its logits are of."""
    return engine._guesser._tokens.tolist()


@torch.inference_mode()
def draft_logits(engine: LeanEngine, tokens: Sequence[int]) -> Tensor:
    """After each of ``tokens``: [rows, ids]."""
    blocks = range(1, 1 + engine.pool.blocks_for(len(tokens)))
    extension = Extension(blocks, 0, tokens, [], [], [None] * len(tokens))
    return engine._logits(rows_of([extension]))
