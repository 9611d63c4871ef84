"""However the tokens arrive, the pieces together are the whole text."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

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


def streamed(decode, parts):
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.feed(part) for part in parts]
    return "".join([*pieces, detokenizer.flush()])


def split(data, sizes):
    """``data`` in parts of the given sizes, again and again."""
    return list(chunks(data, itertools.cycle(sizes)))


SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@given(st.text(max_size=80) | st.text("😀é€\ufffd a", max_size=80), SIZES, SIZES)
def test_tokens_of_any_bytes(text, token_sizes, feed_sizes):
    """Tokens may begin and end inside of characters, so that no place is ever whole."""
    tokens = split(text.encode(), token_sizes)

    def decode(ids):
        return b"".join(tokens[i] for i in ids).decode("utf-8", "replace")

    assert streamed(decode, split(range(len(tokens)), feed_sizes)) == text


@given(st.binary(max_size=300) | st.lists(st.sampled_from(b"\xf0\x9f\x98a")).map(bytes), SIZES)
def test_bytes_that_are_no_text(data, feed_sizes):
    """A decoder of bytes is streamed exactly even then."""

    def decode(ids):
        return bytes(ids).decode("utf-8", "replace")

    assert streamed(decode, split(data, feed_sizes)) == decode(data)


def test_characters_torn_between_all_tokens():
    token = "😀".encode()[2:] + "😀".encode()[:2]
    text = streamed(
        lambda ids: (token * len(ids)).decode("utf-8", "replace"), split([0] * 200, [1])
    )
    assert text == REPLACEMENT * 2 + "😀" * 199 + REPLACEMENT


WORDS = ["\u2581", "\u2581dog", "\u2581a", "x", "\ufffd"]
END = "</s>"


@pytest.fixture(scope="module")
def byte_fallback():
    """A decoder as Llama 2 has it: bytes where a character is no token, a first space dropped."""
    entries = [END, *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    made = RawTokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, []))
    made.add_special_tokens([END])
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made


@given(st.lists(st.sampled_from([END, *WORDS]) | st.characters(codec="utf-8"), max_size=60), SIZES)
def test_bytes_in_place_of_characters(byte_fallback, entries, feed_sizes):
    ids = []
    for entry in entries:
        whole = byte_fallback.token_to_id(entry)
        torn = [byte_fallback.token_to_id(f"<0x{byte:02X}>") for byte in entry.encode()]
        ids += torn if whole is None else [whole]
    assert streamed(byte_fallback.decode, split(ids, feed_sizes)) == byte_fallback.decode(ids)


@pytest.mark.parametrize("byte", ["<0xF0>", "<0x80>", "<0xFF>"])
def test_work_for_a_token_has_a_bound(byte_fallback, byte):
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return byte_fallback.decode(ids)

    ids = [byte_fallback.token_to_id(byte)] * 2000
    text = streamed(decode, split(ids, [1]))
    assert max(sizes) < 100 and len(sizes) < 3 * len(ids)
    assert text == REPLACEMENT * 2000 == byte_fallback.decode(ids)


def test_special_tokens_need_no_memory(byte_fallback):
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return byte_fallback.decode(ids)

    ids = [byte_fallback.token_to_id(entry) for entry in [END] * 500 + ["x"] + [END] * 500]
    ids.append(byte_fallback.token_to_id("\u2581dog"))
    assert streamed(decode, split(ids, [1])) == byte_fallback.decode(ids) == "x dog"
    assert max(sizes) < 100
