"""Slots of the draft's KV, against a memory that is really moved."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.draft_kv import DraftKV
from foredraft.engine.kv import BlockPool
from foredraft.tree.node_id import path_id
from foredraft.tree.token_tree import TokenTree
from foredraft.wire.messages import Source

PROMPT = [1, 2, 3]


def apply(memory: dict[int, int], moves: list[tuple[int, int]]) -> None:
    """All reads before the writes."""
    read = [(target, memory[source]) for source, target in moves]
    memory.update(read)


@given(st.data())
def test_entries_follow_commits(data) -> None:
    """Every slot always holds the entry of the path that the book-keeping says it holds."""
    tree = TokenTree(1, 0, PROMPT, 12, 6)
    kv = DraftKV(BlockPool(100))
    tokens = list(PROMPT)
    memory: dict[int, int] = {}  # slot -> id of the path whose entry lies there
    for _ in range(data.draw(st.integers(1, 5))):
        nodes = [tree.root_id, *tree.nodes]
        for _ in range(data.draw(st.integers(0, 8))):
            parent = data.draw(st.sampled_from(nodes))
            tree.add(parent, data.draw(st.integers(0, 2)), 0.5, Source.MODEL)
            nodes = [tree.root_id, *tree.nodes]
        if data.draw(st.booleans()):  # a pass: committed tokens and some closed set of nodes
            kv.fed = len(tokens)
            some = data.draw(st.sets(st.sampled_from(nodes)))
            line = dict.fromkeys(n for node in some for n in tree.lineage(node))
            kv.place(line, len(tokens))
            memory.update({kv.slots[node]: node for node in line})
        assert len(set(kv.slots.values())) == len(kv.slots)
        assert all(len(tokens) <= s < len(tokens) + tree.max_nodes for s in kv.slots.values())
        path = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        ids = [path_id(tree.root_id, path[: end + 1]) for end in range(len(path))]
        known = [node in kv.slots for node in ids]
        fed_before, before = kv.fed, len(tokens)
        tree.advance(path)
        apply(memory, kv.commit(ids, before, tree.nodes))
        tokens += path
        gained = known.index(False) if False in known else len(known)
        assert kv.fed == fed_before + gained
        for index in range(gained):
            assert memory[before + index] == ids[index]
        for node, slot in kv.slots.items():
            assert memory[slot] == node and slot >= len(tokens)


def nowhere(old: Sequence[int], new: Sequence[int]) -> None:
    raise AssertionError(f"{old} need not go to {new}")


def test_reserve_and_release() -> None:
    pool = BlockPool(3)
    kv = DraftKV(pool)
    assert kv.reserve(17, nowhere) and len(kv.blocks) == 2
    assert kv.reserve(5, nowhere) and len(kv.blocks) == 2
    assert not kv.reserve(49, nowhere)
    assert kv.reserve(48, nowhere) and pool.free_blocks == 0
    kv.release()
    assert pool.free_blocks == 3 and kv.fed == 0 and kv.blocks == []


def test_a_piece_that_cannot_grow_is_exchanged_for_a_longer_one() -> None:
    """Two neighbours; entries go along before the old blocks are free."""
    pool = BlockPool(14)
    first, second = DraftKV(pool), DraftKV(pool)
    went: list[tuple[list[int], list[int], int]] = []

    def relocate(old: Sequence[int], new: Sequence[int]) -> None:
        went.append((list(old), list(new), pool.free_blocks))

    assert first.reserve(32, nowhere) and second.reserve(32, nowhere)
    assert first.reserve(3 * 16, relocate)
    assert went == [([1, 2], [5, 6, 7, 8], 6)]  # half as long again, while the old ones are held
    assert first.blocks == [5, 6, 7, 8] and pool.free_blocks == 8
    assert first.reserve(6 * 16, nowhere) and first.blocks == [5, 6, 7, 8, 9, 10]
    assert second.reserve(3 * 16, relocate)
    assert went[1:] == [([3, 4], [11, 12, 13, 14], 2)]
    assert not first.reserve(7 * 16, relocate)  # 1 to 4 are free, and one piece
    assert first.blocks == [5, 6, 7, 8, 9, 10] and len(went) == 2


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=30))
def test_pieces_stay_pieces_and_nothing_is_lost(steps) -> None:
    """Sequences come, grow and go in any order; a block remembers what was put there last."""
    pool = BlockPool(40)
    memory: dict[int, tuple[int, int]] = {}
    kvs = [DraftKV(pool) for _ in range(4)]

    def relocate(old: Sequence[int], new: Sequence[int]) -> None:
        assert not set(old) & set(new)
        memory.update({there: memory[here] for here, there in zip(old, new, strict=False)})

    for owner, entries in steps:
        kv = kvs[owner]
        held = len(kv.blocks)
        if entries == 0:
            kv.release()
        elif kv.reserve(entries, relocate):
            assert 16 * len(kv.blocks) >= entries
            assert all(memory[block] == (owner, n) for n, block in enumerate(kv.blocks[:held]))
            memory |= {block: (owner, number) for number, block in enumerate(kv.blocks)}
        for kv in kvs:
            first = kv.blocks[0] if kv.blocks else 0
            assert kv.blocks == list(range(first, first + len(kv.blocks)))
        assert pool.free_blocks == 40 - sum(len(kv.blocks) for kv in kvs)
