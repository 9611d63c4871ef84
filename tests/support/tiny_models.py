"""Tiny random model directories: real file formats, a fraction of a second to make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

EOS = 2
_SPECIAL = ("<pad>", "<s>", "</s>")


def make_tiny_llama(path: Path, **options: Any) -> Path:
    """Write a tiny model of the family that most tests need; options as `make_tiny_model`."""
    return make_tiny_model(path, "llama", **options)


def make_tiny_model(
    path: Path,
    family: str,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 128,
    real_vocab: int | None = None,
    context: int = 256,
    seed: int = 0,
    tie: bool = True,
    spread: float = 0.2,
    norm_spread: float = 0.0,
    shard: str = "1GB",
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Path:
    """Write a random model of ``vocab`` rows and a tokenizer of ``real_vocab`` entries.

    Equal arguments give equal files. ``spread`` is the standard deviation of the weights and
    biases: the library's own 0.02 makes logits so flat that greedy choices hang on rounding.
    ``norm_spread`` is that of the norms' weights, around 1. A file has at most ``shard`` bytes.
    ``dtype`` is that of the files. ``more`` fields go to config.json.
    """
    path.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(
        family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=tie,
        initializer_range=spread,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=EOS,
        **more,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
        for name, weight in model.named_parameters():
            if name.endswith(".bias"):  # the library makes them 0, and the norms 1
                torch.nn.init.normal_(weight, std=spread)
            elif name.endswith("norm.weight") and norm_spread:
                torch.nn.init.normal_(weight, mean=1.0, std=norm_spread)
    model.to(dtype).save_pretrained(path, max_shard_size=shard)
    make_tiny_tokenizer(path, vocab if real_vocab is None else real_vocab)
    return path


def make_tiny_tokenizer(path: Path, size: int) -> Path:
    """Write a byte-level tokenizer of ``size`` entries: specials, then as many bytes as fit.

    A text with a byte that found no room loses that byte; with 259 entries or more none is lost.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (c not in "ĠĊ", c))
    entries = [*_SPECIAL, *letters][:size]
    entries += [f"<extra_{index}>" for index in range(len(entries), size)]
    inner = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(entries)}, merges=[])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(path)
    return path
