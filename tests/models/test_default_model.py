"""The default model: its shape, and one tokenizer for gateway and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

SAMPLES = [
    "",
    "Hello world",
    " Paris",
    "  two  spaces\n\n\ttab\r\n",
    "year 1984, 3.14",
    "don't 'S it's",
    "👩‍👩‍👧 日本語 ď",
    "def f(x):\n    return x**2\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
]


def test_the_shape_is_that_of_the_published_model(default_model: Path) -> None:
    config = json.loads((default_model / "config.json").read_text())
    expected = {
        "vocab_size": 49_152,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize("text", SAMPLES)
def test_the_gateway_tokenizes_as_transformers_does(default_model: Path, text: str) -> None:
    ours = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(default_model)
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs(text, add_special_tokens=False).input_ids
    assert ours.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("😀", [10813, 242, 218]),
        ("🙂🙂", [10813, 38887, 10813, 38887]),
        ("ď", [143, 233]),
        ("<|im_end|>", [2]),
    ],
)
def test_known_ids(default_model: Path, text: str, ids: list[int]) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids
