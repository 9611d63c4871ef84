"""However the tokens arrive, the pieces together are the whole text."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer as RawTokenizer

from gateway.detokenizer import REPLACEMENT, Detokenizer
from gateway.tokenizer import Tokenizer

TEXTS = [
    "😀",
    "🙂🙂",
    "👩\u200d👩\u200d👧",
    "ď",
    "日本語",
    " Paris",
    "  two  spaces ",
    "\n\n\tif x:\n        return '😀' # ď",
    "mixed: 日本 and 🙂 and é",
]


@pytest.fixture(scope="module")
def tokenizer(default_model):
    return Tokenizer(default_model)


def chunks(ids, sizes):
    start = 0
    while start < len(ids):
        size = next(sizes)
        yield ids[start : start + size]
        start += size


def constant(size):
    while True:
        yield size


def shuffled(seed):
    choose = random.Random(seed)
    while True:
        yield choose.randint(1, 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sizes", [lambda: constant(1), lambda: constant(2), lambda: shuffled(3)])
async def test_pieces_equal_the_whole(tokenizer, text, sizes):
    ids = await tokenizer.encode(text)
    detokenizer = Detokenizer(tokenizer.decode)
    pieces = [detokenizer.feed(part) for part in chunks(ids, sizes())]
    pieces.append(detokenizer.flush())
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(20))
def test_random_tokens_too(tokenizer, default_model, seed):
    choose = random.Random(seed)
    size = RawTokenizer.from_file(str(default_model / "tokenizer.json")).get_vocab_size()
    ids = [choose.randrange(size) for _ in range(300)]
    detokenizer = Detokenizer(tokenizer.decode)
    pieces = [detokenizer.feed(part) for part in chunks(ids, shuffled(seed))]
    assert "".join([*pieces, detokenizer.flush()]) == tokenizer.decode(ids)


@pytest.mark.asyncio
async def test_unfinished_character_comes_with_the_flush(tokenizer):
    ids = (await tokenizer.encode("😀"))[:-1]
    detokenizer = Detokenizer(tokenizer.decode)
    assert detokenizer.feed(ids) == ""
    assert detokenizer.flush() == tokenizer.decode(ids)


def test_a_decoder_that_strips_the_first_space():
    """Some decoders drop the space before the first word of whatever they are given."""
    words = ["", " big", " red", " dog"]

    def decode(ids):
        return "".join(words[i] for i in ids).removeprefix(" ")

    detokenizer = Detokenizer(decode)
    assert [detokenizer.feed((i,)) for i in (1, 2, 3)] == ["big", " red", " dog"]
