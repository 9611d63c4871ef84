"""Where tokens stand in a text of which they may be parts of characters."""

from __future__ import annotations

from foredraft.results import TokenLogprob
from foredraft.wire.messages import PromptLogprobs
from gateway.http.logprobs import LogprobWriter

PIECES = [b"a", b"\xf0\x9f", b"\x98\x80", b"bc"]  # a😀bc


class Pieces:
    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]


def entry(token: int) -> TokenLogprob:
    return TokenLogprob(token, -1.0, [])


def test_a_character_of_two_tokens_is_one_character() -> None:
    writer = LogprobWriter(Pieces())
    first, second = writer.completion([entry(0), entry(1)]), writer.completion([entry(2), entry(3)])
    assert first["text_offset"] + second["text_offset"] == [0, 1, 1, 2]


def test_an_answer_goes_on_where_its_prompt_ends() -> None:
    writer = LogprobWriter(Pieces())
    prompt = writer.prompt([0, 1, 2], PromptLogprobs((-0.5, -0.25)))
    assert prompt["text_offset"] == [0, 1, 1]
    assert prompt["token_logprobs"] == [None, -0.5, -0.25]
    assert writer.completion([entry(3)])["text_offset"] == [2]
