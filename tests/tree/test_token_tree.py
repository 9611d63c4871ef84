"""Trees that saw different messages agree on every id; bounds and re-rooting hold in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.tree.node_id import child_id, path_id, start_id
from foredraft.tree.token_tree import REMEMBERED_ROOTS, Added, TokenTree
from foredraft.wire.messages import Source

PROMPT = (7, 8, 9)
paths = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)
path_sets = st.lists(paths, max_size=12)


def make_tree(max_nodes: int = 1000, max_depth: int = 100) -> TokenTree:
    return TokenTree(5, 1, PROMPT, max_nodes, max_depth)


def add_path(tree: TokenTree, start: int, path: tuple[int, ...]) -> list[Added]:
    results = []
    for token in path:
        results.append(tree.add(start, token, 0.5, Source.MODEL))
        start = child_id(start, token)
    return results


def shape(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.path(node_id)) for node_id in tree.nodes}


def check(tree: TokenTree) -> None:
    """Everything that must hold of a tree at any time."""
    walked = list(tree.walk())
    assert {node.id for node in walked} == set(tree.nodes)
    assert len(walked) == len(tree) <= tree.max_nodes
    above = {tree.root_id: (0, 1.0)}
    for node in walked:
        depth, survival = above[node.parent_id]
        assert node.id == child_id(node.parent_id, node.token)
        assert node.depth == depth + 1 <= tree.max_depth
        assert abs(node.survival - survival * node.confidence) < 1e-12
        assert tree.lineage(node.id)[-1] == node.id
        above[node.id] = (node.depth, node.survival)


def prefixes(some: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {path[: end + 1] for path in some for end in range(len(path))}


@given(path_sets)
def test_tree_holds_exactly_the_paths_it_was_given(some: list[tuple[int, ...]]) -> None:
    tree = make_tree()
    for path in some:
        add_path(tree, tree.root_id, path)
    assert shape(tree) == prefixes(some)
    check(tree)


@given(path_sets, st.randoms())
def test_order_and_doubles_of_messages_do_not_matter(some, random) -> None:
    straight, shuffled = make_tree(), make_tree()
    for path in some:
        add_path(straight, straight.root_id, path)
    waiting = [(path_id(straight.root_id, p[:-1]), p[-1]) for p in prefixes(some)] * 2
    random.shuffle(waiting)
    while waiting:  # an orphan is named and sent again, as the verifier asks for it
        waiting = [
            (parent, token)
            for parent, token in waiting
            if shuffled.add(parent, token, 0.5, Source.MODEL) is Added.ORPHAN
        ]
        random.shuffle(waiting)
    assert shape(shuffled) == shape(straight)
    check(shuffled)


@given(path_sets, paths)
def test_re_rooting_keeps_exactly_the_subtree(some, committed) -> None:
    tree = make_tree()
    for path in some:
        add_path(tree, tree.root_id, path)
    known = shape(tree)
    assert tree.advance(committed) is (committed in known)
    size = len(committed)
    assert shape(tree) == {p[size:] for p in known if p[:size] == committed and len(p) > size}
    assert tree.root_id == path_id(start_id(5, 1), PROMPT + committed)
    check(tree)


@given(path_sets, path_sets, paths, path_sets)
def test_trees_that_saw_different_nodes_agree_on_ids(ours, theirs, committed, later) -> None:
    drafter, verifier = make_tree(), make_tree()
    old_root = drafter.root_id
    for path in ours:
        add_path(drafter, old_root, path)
    for path in theirs:
        add_path(verifier, old_root, path)
    drafter.advance(committed)
    for token in committed:  # one step's commit or several: the same root
        verifier.advance([token])
    assert drafter.root_id == verifier.root_id
    shared = shape(drafter) & shape(verifier)
    for path in shared:
        assert drafter.path(path_id(drafter.root_id, path)) == list(path)
        assert path_id(drafter.root_id, path) in verifier
    for path in later:
        assert Added.ORPHAN not in add_path(verifier, drafter.root_id, path)
    check(drafter)
    check(verifier)


@given(paths, paths)
def test_late_nodes_hang_on_the_committed_path_or_are_stale(committed, late) -> None:
    tree = make_tree()
    old_root = tree.root_id
    tree.advance(committed)
    results = add_path(tree, old_root, late)
    common = 0
    while common < min(len(committed), len(late)) and committed[common] == late[common]:
        common += 1
    assert results[:common] == [Added.KNOWN] * common
    if common == len(committed):
        assert results[common:] == [Added.NEW] * (len(late) - common)
        assert shape(tree) == prefixes([late[common:]] if late[common:] else [])
    else:
        assert results[common : common + 1] in ([], [Added.STALE])
        assert set(results[common + 1 :]) <= {Added.ORPHAN}
        assert len(tree) == 0


@given(path_sets, st.integers(1, 6), st.integers(1, 4))
def test_bounds(some, max_nodes, max_depth) -> None:
    tree = make_tree(max_nodes, max_depth)
    for path in some:
        results = add_path(tree, tree.root_id, path)
        if Added.FULL in results:
            assert set(results[results.index(Added.FULL) + 1 :]) <= {Added.ORPHAN}
        check(tree)


def test_two_sources_of_one_path_are_one_node() -> None:
    tree = make_tree()
    assert tree.add(tree.root_id, 4, 0.5, Source.SUFFIX) is Added.NEW
    assert tree.add(tree.root_id, 4, 0.9, Source.MODEL) is Added.KNOWN
    assert len(tree) == 1


def test_survival_rises_when_the_root_moves_down() -> None:
    tree = make_tree()
    add_path(tree, tree.root_id, (1, 2, 3))
    assert tree.survival(path_id(tree.root_id, (1, 2, 3))) == 0.125
    tree.advance([1])
    assert tree.survival(path_id(tree.root_id, (2, 3))) == 0.25
    assert tree.depth(path_id(tree.root_id, (2, 3))) == 2


def test_walk_below_a_node() -> None:
    tree = make_tree()
    for path in ((1, 2, 3), (1, 4), (5, 6)):
        add_path(tree, tree.root_id, path)
    below = {node.token for node in tree.walk(child_id(tree.root_id, 1))}
    assert below == {2, 3, 4}


def test_memory_of_former_roots_is_bounded() -> None:
    tree = make_tree()
    oldest = tree.root_id
    for token in range(REMEMBERED_ROOTS + 1):
        newest = tree.root_id
        tree.advance([token])
    assert tree.add(newest, REMEMBERED_ROOTS, 0.5, Source.MODEL) is Added.KNOWN
    assert tree.add(newest, 1, 0.5, Source.MODEL) is Added.STALE
    assert tree.add(oldest, 0, 0.5, Source.MODEL) is Added.ORPHAN


def test_a_long_way_without_guesses_is_caught_up_with_as_if_it_had_been_followed() -> None:
    followed, left = make_tree(), make_tree()
    way = [token % 7 for token in range(3 * REMEMBERED_ROOTS)]
    roots = [followed.root_id]
    for token in way:
        followed.advance([token])
        roots.append(followed.root_id)
        left.advance([token])
    for tree in (followed, left):
        ends = [tree.add(root, way[-1], 0.5, Source.MODEL) for root in (roots[0], roots[-2])]
        assert ends == [Added.ORPHAN, Added.KNOWN]
        oldest = roots[-1 - REMEMBERED_ROOTS]
        assert tree.add(oldest, way[-REMEMBERED_ROOTS], 0.5, Source.MODEL) is Added.KNOWN
    assert left.root_id == followed.root_id


def test_a_root_that_nobody_asked_for_is_found_later() -> None:
    """Commits without guesses: late guesses, stale ones and the next root are told apart still."""
    tree = TokenTree(1, 1, [5], max_nodes=8, max_depth=8)
    old = tree.root_id
    for token in (10, 11, 12):
        assert tree.advance([token]) is False
        assert list(tree.walk()) == []
    assert tree.add(old, 10, 0.9, Source.MODEL) is Added.KNOWN
    assert tree.add(old, 99, 0.9, Source.MODEL) is Added.STALE
    assert tree.root_id == path_id(old, [10, 11, 12])
    assert tree.add(path_id(old, [10, 11, 12]), 13, 0.9, Source.MODEL) is Added.NEW
    assert tree.advance([13]) is True
    assert tree.root_id == path_id(old, [10, 11, 12, 13])
