"""One sequence's tree of guesses, rooted at its newest committed token.

The drafter and the verifier each hold one. Ids are path hashes, so messages may be late,
reordered or doubled: a node attaches if its parent is the root or in the tree, a node on the
committed path is that path, and all else is an orphan or stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
class Node:
    """A guess. ``survival`` is the product of confidences from the root down to it."""

    id: int
    parent_id: int
    token: int
    depth: int
    confidence: float
    survival: float
    source: Source
    children: list[int] = field(default_factory=list)


class TokenTree:
    """Bounds: at most ``max_nodes`` nodes, none deeper than ``max_depth`` below the root."""

    def __init__(
        self, seq_id: int, incarnation: int, tokens: Sequence[int], max_nodes: int, max_depth: int
    ) -> None:
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self._root_id = path_id(start_id(seq_id, incarnation), tokens)
        self._behind: list[int] = []  # committed tokens that the root does not know of yet
        self.nodes: dict[int, Node] = {}
        self.root_children: list[int] = []
        self._committed_child: dict[int, int] = {}  # id of a former root -> id of the next one

    @property
    def root_id(self) -> int:
        """Id of the committed path."""
        if self._behind:
            self._follow(self._behind)
            self._behind = []
        return self._root_id

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, node_id: int) -> bool:
        return node_id == self.root_id or node_id in self.nodes

    def children(self, node_id: int) -> list[int]:
        """Ids of the children of the root or of a node."""
        node = self.nodes.get(node_id)
        return self.root_children if node is None else node.children

    def depth(self, node_id: int) -> int:
        node = self.nodes.get(node_id)
        return 0 if node is None else node.depth

    def survival(self, node_id: int) -> float:
        node = self.nodes.get(node_id)
        return 1.0 if node is None else node.survival

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
        while node_id != self.root_id:
            line.append(node_id)
            node_id = self.nodes[node_id].parent_id
        line.reverse()
        return line

    def path(self, node_id: int) -> list[int]:
        """Tokens from below the root down to the node."""
        return [self.nodes[node].token for node in self.lineage(node_id)]

    def add(self, parent_id: int, token: int, confidence: float, source: Source) -> Added:
        """Attach a guess below ``parent_id``."""
        nodes, root_id = self.nodes, self.root_id
        node_id = child_id(parent_id, token)
        if node_id in nodes or self._committed_child.get(parent_id) == node_id:
            return Added.KNOWN
        if parent_id in self._committed_child:
            return Added.STALE
        parent = nodes.get(parent_id)
        if parent is not None:
            siblings, depth, above = parent.children, parent.depth + 1, parent.survival
        elif parent_id == root_id:
            siblings, depth, above = self.root_children, 1, 1.0
        else:
            return Added.ORPHAN
        if len(nodes) >= self.max_nodes or depth > self.max_depth:
            return Added.FULL
        survival = above * confidence
        nodes[node_id] = Node(node_id, parent_id, token, depth, confidence, survival, source)
        siblings.append(node_id)
        return Added.NEW

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
        root_id = self._follow(tokens)
        hit = root_id in self.nodes
        self._keep(self.nodes[root_id].children if hit else [])
        return hit

    def _follow(self, tokens: Iterable[int]) -> int:
        """Move the root, and remember the former ones; returns its id."""
        for token in tokens:
            next_id = child_id(self._root_id, token)
            self._committed_child[self._root_id] = next_id
            self._root_id = next_id
        while len(self._committed_child) > REMEMBERED_ROOTS:
            del self._committed_child[next(iter(self._committed_child))]
        return self._root_id

    def _keep(self, children: list[int]) -> None:
        """Make what hangs below ``children``, those of the root, the whole tree."""
        old = self.nodes
        self.root_children = list(children)
        self.nodes = {}
        stack = [(child, 1, 1.0) for child in children]
        while stack:
            node_id, depth, above = stack.pop()
            node = old[node_id]
            node.depth = depth
            node.survival = above * node.confidence
            self.nodes[node_id] = node
            stack.extend((child, depth + 1, node.survival) for child in node.children)
