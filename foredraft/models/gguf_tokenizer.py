"""The byte-level BPE tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from foredraft.models.fetch import ModelError
from foredraft.models.gguf_reader import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # token types of the GGUF specification


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """A tokenizer that adds nothing of its own: no prefix space, no special tokens."""
    kind = (file["tokenizer.ggml.model"], file["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ModelError(f"{file.path.name} has tokenizer {'/'.join(kind)}; allowed is gpt2/smollm")
    tokens: list[str] = file["tokenizer.ggml.tokens"]
    merges = [_merge(line) for line in file["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = file["tokenizer.ggml.token_type"]
    _add(tokenizer, [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL], True)
    _add(tokenizer, [t for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED])
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """The content of tokenizer_config.json, the chat template included."""
    tokens = file["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[file["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[file["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[file["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[file["tokenizer.ggml.padding_token_id"]],
        "model_max_length": file.hyperparameter("context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": file["tokenizer.chat_template"],
    }


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _add(tokenizer: Tokenizer, contents: list[str], special: bool = False) -> None:
    added = [AddedToken(text, special=special, normalized=False) for text in contents]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
