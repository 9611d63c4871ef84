"""The bytes of single tokens, in both spellings of a vocabulary."""

from __future__ import annotations

import pytest
from support.tiny_models import make_tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models

from gateway.token_bytes import TokenBytes


def test_byte_level_tokens_are_the_bytes_of_a_text(tmp_path):
    tokenizer = Tokenizer.from_file(
        str(make_tiny_tokenizer(tmp_path / "tiny", 259) / "tokenizer.json")
    )
    pieces = TokenBytes(tokenizer)
    text = "a é\n\x00日本🙂"
    assert b"".join(pieces.of(token) for token in tokenizer.encode(text).ids) == text.encode()
    assert sorted(pieces.of(token) for token in range(3, 259)) == [bytes([b]) for b in range(256)]
    assert pieces.of(2) == b"</s>"
    assert pieces.of(259) == b""


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("▁the", b" the"),
        ("<0xE2>", b"\xe2"),
        ("Ġ", "Ġ".encode()),
        ("日", "日".encode()),
        ("<s>", b"<s>"),
    ],
)
def test_sentencepiece_spells_spaces_and_bytes_in_words(piece, expected):
    vocabulary = {"<unk>": 0, "▁the": 1, "<0xE2>": 2, "Ġ": 3, "日": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("<s>")])
    assert TokenBytes(tokenizer).of(tokenizer.token_to_id(piece)) == expected
