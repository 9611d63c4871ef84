"""A model directory without weights: all that a stack of stand-ins needs."""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_SPECIAL = ("<pad>", "<s>", "</s>")
_SPACE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"  # how byte-level tokenizers write it


def make_tiny_directory(path: Path, context: int = 4096) -> Path:
    """Write a configuration and a tokenizer of one entry per character that can be printed.

    Not per byte: in what a stand-in says, most characters would be torn.
    """
    path.mkdir(parents=True, exist_ok=True)
    alphabet = [_SPACE, *string.digits, *string.ascii_letters, *string.punctuation]
    entries = {entry: number for number, entry in enumerate((*_SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(entries),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path
