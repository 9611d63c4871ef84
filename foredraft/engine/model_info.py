"""What a worker says its model is."""

from __future__ import annotations

from pathlib import Path

from foredraft.engine.model_config import ModelConfig
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.messages import ModelInfo


def read_model_info(directory: Path, config: ModelConfig, dtype: str = "") -> ModelInfo:
    """From the directory's small files. Raises UnsupportedModel if its tokenizer cannot be read."""
    tokenizer = tokenizer_identity(directory)
    return ModelInfo(
        model_id=directory.name,
        tokenizer_hash=tokenizer.hash,
        vocab_size=min(tokenizer.vocab_size, config.vocab_rows),
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        dtype=dtype,
    )
