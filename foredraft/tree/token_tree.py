"""One sequence's tree of guesses, rooted at its newest committed token.

The drafter and the verifier each hold one. Ids are path hashes, so messages may be late,
reordered or doubled: a node attaches if its parent is the root or in the tree, a node on the
committed path is that path, and all else is an orphan or stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from foredraft.tree.node_id import child_id, path_id, start_id
from foredraft.wire.messages import Source

REMEMBERED_ROOTS = 1024  # a message that is later than this many tokens meets an unknown parent


class Added(Enum):
    """What became of a node that was offered to a tree."""

    NEW = auto()
    KNOWN = auto()  # in the tree already, or on the committed path
    STALE = auto()  # beside the committed path: can never be accepted
    ORPHAN = auto()  # parent unknown: its subtree has to be sent again
    FULL = auto()  # a bound of the tree is reached


@dataclass(slots=True)
class Place:
    """The root or a node: where guesses hang.

    survival: the product of confidences from the root down to it.
    taken: the sum of its children's confidences.
    """

    id: int
    depth: int = 0
    survival: float = 1.0
    taken: float = 0.0
    children: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Node(Place):
    """A guess. ``made_at``: its depth below the root of the time when it was added."""

    parent_id: int = 0
    token: int = 0
    confidence: float = 1.0
    source: Source = Source.MODEL
    made_at: int = 0


class TokenTree:
    """Bounds: at most ``max_nodes`` nodes, none deeper than ``max_depth`` below the root."""

    def __init__(
        self, seq_id: int, incarnation: int, tokens: Sequence[int], max_nodes: int, max_depth: int
    ) -> None:
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self._root = Place(path_id(start_id(seq_id, incarnation), tokens))
        self._behind: list[int] = []  # committed tokens that the root does not know of yet
        self.nodes: dict[int, Node] = {}
        self._committed_child: dict[int, int] = {}  # id of a former root -> id of the next one

    @property
    def root(self) -> Place:
        """The end of the committed path."""
        if self._behind:
            self._catch_up()
        return self._root

    @property
    def root_id(self) -> int:
        """Id of the committed path."""
        if self._behind:
            self._catch_up()
        return self._root.id

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self.nodes or node_id == self.root_id

    def place(self, node_id: int) -> Place:
        """A node; the root for any other id."""
        return self.nodes.get(node_id, self.root)

    def children(self, node_id: int) -> list[int]:
        """Ids of the children of the root or of a node."""
        return self.place(node_id).children

    def depth(self, node_id: int) -> int:
        return self.place(node_id).depth

    def survival(self, node_id: int) -> float:
        return self.place(node_id).survival

    def promise(self) -> float:
        """Tokens that the target is expected to take from the tree."""
        return sum(node.survival for node in self.nodes.values())

    def walk(self, below: int | None = None) -> Iterator[Node]:
        """All nodes below the root or below a node, parents before children."""
        if not self.nodes:
            return
        stack = list(reversed(self.children(self.root_id if below is None else below)))
        while stack:
            node = self.nodes[stack.pop()]
            yield node
            stack.extend(reversed(node.children))

    def lineage(self, node_id: int) -> list[int]:
        """Ids from below the root down to the node."""
        line: list[int] = []
        nodes, root_id = self.nodes, self.root_id
        while node_id != root_id:
            line.append(node_id)
            node_id = nodes[node_id].parent_id
        line.reverse()
        return line

    def path(self, node_id: int) -> list[int]:
        """Tokens from below the root down to the node."""
        return [self.nodes[node].token for node in self.lineage(node_id)]

    def add(self, parent_id: int, token: int, confidence: float, source: Source) -> Added:
        """Attach a guess below ``parent_id``."""
        parent = self.nodes.get(parent_id) or self.root
        if parent.id != parent_id:
            known = self._committed_child.get(parent_id)
            if known is None:
                return Added.ORPHAN
            return Added.KNOWN if known == child_id(parent_id, token) else Added.STALE
        if self.grow(parent, token, confidence, source) is not None:
            return Added.NEW
        return Added.KNOWN if child_id(parent_id, token) in self.nodes else Added.FULL

    def grow(self, parent: Place, token: int, confidence: float, source: Source) -> Node | None:
        """Attach a guess below the root or a node.

        None if it is there already, or if a bound is reached.
        """
        nodes, depth = self.nodes, parent.depth + 1
        node_id = child_id(parent.id, token)
        if node_id in nodes or len(nodes) >= self.max_nodes or depth > self.max_depth:
            return None
        survival = parent.survival * confidence
        node = nodes[node_id] = Node(
            node_id, depth, survival, 0.0, [], parent.id, token, confidence, source, depth
        )
        parent.children.append(node_id)
        parent.taken += confidence
        return node

    def advance(self, tokens: Sequence[int]) -> bool:
        """Re-root at the end of ``tokens`` and keep the subtree there.

        Without any node the new root is only computed when somebody asks for it: where nobody
        guesses, steps go by without that.

        Returns True on a hit: the new root was a node of the tree.
        """
        if not tokens:
            return True
        if not self.nodes:
            self._behind += tokens
            return False
        old, self.nodes = self.nodes, {}
        root_id = self._follow(tokens)
        root = old.get(root_id)
        if root is None:
            self._root = Place(root_id)
            return False
        self._root = Place(root_id, 0, 1.0, root.taken, root.children)
        self._keep(old)
        return True

    def _catch_up(self) -> None:
        """Of a long way only the end is remembered, and the rest of it not even noted."""
        behind, self._behind = self._behind, []
        if len(behind) > REMEMBERED_ROOTS:
            self._committed_child.clear()
            self._root = Place(path_id(self._root.id, behind[:-REMEMBERED_ROOTS]))
            behind = behind[-REMEMBERED_ROOTS:]
        self._root = Place(self._follow(behind))

    def _follow(self, tokens: Iterable[int]) -> int:
        """Remember the root and those before its place after ``tokens``, whose id is returned."""
        root_id = self._root.id
        for token in tokens:
            next_id = child_id(root_id, token)
            self._committed_child[root_id] = next_id
            root_id = next_id
        while len(self._committed_child) > REMEMBERED_ROOTS:
            del self._committed_child[next(iter(self._committed_child))]
        return root_id

    def _keep(self, old: Mapping[int, Node]) -> None:
        """Make what hangs below the root the whole tree."""
        stack = [(child, 1, 1.0) for child in self._root.children]
        while stack:
            node_id, depth, above = stack.pop()
            node = old[node_id]
            node.depth = depth
            node.survival = above * node.confidence
            self.nodes[node_id] = node
            stack.extend((child, depth + 1, node.survival) for child in node.children)
