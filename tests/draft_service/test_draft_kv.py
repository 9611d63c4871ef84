"""Slots of the draft's KV, against a memory that is really moved."""

from __future__ import annotations

from hypothesis import given
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


def test_reserve_and_release() -> None:
    pool = BlockPool(3)
    kv = DraftKV(pool)
    assert kv.reserve(17) and len(kv.blocks) == 2
    assert kv.reserve(5) and len(kv.blocks) == 2
    assert not kv.reserve(49)
    assert kv.reserve(48) and pool.free_blocks == 0
    kv.release()
    assert pool.free_blocks == 3 and kv.fed == 0 and kv.blocks == []
