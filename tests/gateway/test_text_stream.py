"""Stop strings are found wherever they fall, and nothing of them is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopStrings
from gateway.text_stream import TextStream


def decode(ids):
    return bytes(ids).decode("utf-8", "replace")


def play(stops, rounds):
    """Shown pieces, number of delivered tokens, and whether a stop string was found."""
    stream = TextStream(decode, stops)
    pieces, kept = [], 0
    for text in rounds:
        piece, count = stream.feed(tuple(text.encode()))
        pieces.append(piece)
        kept += count
        if stream.stopped:
            return pieces, kept, True
    pieces.append(stream.finish())
    return pieces, kept, False


def test_stop_string_over_two_rounds():
    assert play(["END"], ["abc E", "ND xyz"]) == (["abc ", ""], 7, True)


def test_false_beginning_is_delivered():
    pieces, kept, stopped = play(["END"], ["abc E", "NTER"])
    assert ("".join(pieces), kept, stopped) == ("abc ENTER", 9, False)


def test_false_beginning_at_the_very_end_is_delivered():
    pieces, kept, stopped = play(["END"], ["abc EN"])
    assert pieces == ["abc ", "EN"] and kept == 6 and not stopped


def test_stop_string_inside_one_round():
    assert play(["\n\n"], ["one\n\ntwo\n\n"]) == (["one"], 5, True)


def test_the_first_to_be_complete_wins():
    assert play(["wxyz", "xy"], ["vwxyz"]) == (["vw"], 4, True)


def test_stop_string_of_torn_characters():
    emoji = "😀".encode()
    stream = TextStream(decode, ["😀"])
    assert stream.feed((97, *emoji[:2])) == ("a", 3)
    assert stream.feed((*emoji[2:], 98)) == ("", 2)
    assert stream.stopped


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_text_is_cut_before_the_stop_string_that_ends_first(text, stops):
    matcher = StopStrings(stops)
    shown = "".join(matcher.feed(character) for character in text)
    shown += "" if matcher.found else matcher.flush()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert shown == text and not matcher.found
    else:
        first = min(ends)
        starts = [first - len(stop) for stop in stops if text[:first].endswith(stop)]
        assert matcher.found and shown == text[: min(starts)]


@pytest.mark.parametrize("stops", [[], ["x"]])
def test_nothing_held_without_reason(stops):
    assert TextStream(decode, stops).feed(tuple(b"hello")) == ("hello", 5)


def test_a_long_beginning_of_a_stop_string_costs_little():
    """Quadratic work for each character would take hours here."""
    stop = "ab" * 10_000 + "c"
    matcher = StopStrings([stop, "zzz"])
    shown = [matcher.feed(character) for character in "ab" * 10_001]
    assert shown[:20_000] == [""] * 20_000 and shown[20_000:] == ["ab", ""]
    assert matcher.feed("c") == "" and matcher.found
