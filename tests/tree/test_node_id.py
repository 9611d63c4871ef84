"""Ids name paths: equal paths alike, others apart, on every machine the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.tree.node_id import child_id, path_id, start_id

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=8)


def test_values_are_fixed_for_ever() -> None:
    assert start_id(1, 0) == 0x910A2DEC89025CC1
    assert path_id(start_id(1, 0), [5, 6, 7]) == 0x58126E002BF60727


@given(tokens, tokens, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_path_can_be_cut_anywhere(head, tail, seq_id, incarnation) -> None:
    start = start_id(seq_id, incarnation)
    assert path_id(path_id(start, head), tail) == path_id(start, head + tail)
    assert 0 <= path_id(start, head) < 2**64


@given(st.integers(0, 2**64 - 1), st.sets(st.integers(0, 2**31 - 1), min_size=2, max_size=50))
def test_siblings_never_collide(parent, some) -> None:
    assert len({child_id(parent, token) for token in some}) == len(some)


def test_many_paths_of_many_sequences_do_not_collide() -> None:
    seen = set()
    for seq_id in range(20):
        for incarnation in range(5):
            node = start_id(seq_id, incarnation)
            for depth in range(100):
                seen.add(node)
                node = child_id(node, depth % 3)
    assert len(seen) == 20 * 5 * 100
