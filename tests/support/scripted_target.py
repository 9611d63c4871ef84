"""The other side of a drafter in tests: a target whose text is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draft_service.answers import Answer, Drafts
from draft_service.drafter import Drafter
from foredraft.tree.node_id import child_id
from foredraft.tree.token_tree import Added, TokenTree
from foredraft.wire.messages import Commit, Commits, NodeGroup, OpenSequence, Source


class ScriptedTarget:
    """Plays the verifier of one sequence that is bound to become ``text``.

    ``proposed`` keeps every node ever received as (parent id, token, source), ``complete`` the
    last group's flag.
    """

    def __init__(self, opened: OpenSequence, text: Sequence[int], max_nodes: int = 64) -> None:
        self.opened = opened
        self.text = list(text)
        self.known = len(opened.prompt) + len(opened.committed)
        self.tree = TokenTree(
            opened.seq_id, opened.incarnation, self.text[: self.known], max_nodes, 64
        )
        self.proposed: list[tuple[int, int, Source]] = []
        self.orphans: list[int] = []
        self.complete = False

    def take(self, group: NodeGroup) -> list[Added]:
        """Receive nodes."""
        assert group.incarnation == self.opened.incarnation
        self.complete = group.complete and group.root_id == self.tree.root_id
        results = []
        columns = zip(group.parent_ids, group.tokens, group.confidences, group.sources, strict=True)
        for parent_id, token, confidence, source in columns:
            added = self.tree.add(parent_id, token, confidence, source)
            if added is Added.ORPHAN:
                self.orphans.append(parent_id)
            self.proposed.append((parent_id, token, source))
            results.append(added)
        return results

    def accepted(self) -> list[int]:
        """Nodes on the path that the target takes through the tree."""
        node, path = self.tree.root_id, []
        for token in self.text[self.known :]:
            node = child_id(node, token)
            if node not in self.tree:
                break
            path.append(node)
        return path

    def first_wrong(self) -> int | None:
        """The node where the target takes none of the children although there are some."""
        path = [self.tree.root_id, *self.accepted()]
        if self.known + len(path) > len(self.text):
            return None  # the script ends here
        return path[-1] if self.tree.children(path[-1]) else None

    def step(self, most: int | None = None) -> Commit:
        """Commit what is accepted (``most`` nodes at most) and the target's own next token."""
        path = self.accepted()[:most]
        tokens = tuple(self.text[self.known : self.known + len(path) + 1])
        commit = Commit(
            self.opened.seq_id,
            self.opened.incarnation,
            self.known,
            tokens,
            accepted=len(path),
            orphans=tuple(self.orphans),
        )
        self.orphans = []
        self.known += len(tokens)
        self.tree.advance(tokens)
        return commit

    @property
    def done(self) -> bool:
        return self.known >= len(self.text)


def run_until_idle(drafter: Drafter, spy: Callable[[], None] = lambda: None) -> list[Answer]:
    """Let the drafter work until it has nothing to do; ``spy`` looks in between."""
    answers: list[Answer] = []
    while drafter.busy:
        answers += drafter.draft()
        spy()
    return answers


def groups_of(answers: Sequence[Answer]) -> list[NodeGroup]:
    """All node groups of all workers, in the order they were sent."""
    return [
        group
        for answer in answers
        if isinstance(answer.content, Drafts)
        for batch in answer.content.batches.values()
        for group in batch.groups
    ]


def exchange(drafter: Drafter, targets: Sequence[ScriptedTarget], stream: int = 1) -> None:
    """One round without a network: the drafter answers, every target takes its groups."""
    by_id = {target.opened.seq_id: target for target in targets}
    for group in groups_of(run_until_idle(drafter)):
        if group.seq_id in by_id:
            by_id[group.seq_id].take(group)


def commit_all(drafter: Drafter, targets: Sequence[ScriptedTarget], stream: int = 1) -> None:
    """Every target that is not done makes a step."""
    commits = tuple(target.step() for target in targets if not target.done)
    assert drafter.handle(stream, Commits(commits)) == []
