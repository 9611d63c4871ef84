"""One sequence as the drafter sees it: its text, its tree and the guesses still open.

All of it can be made again from the committed tokens, so nothing here is ever saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from draft_service.draft_kv import DraftKV, Move
from draft_service.merged_options import merged
from draft_service.open_options import OpenOptions, Option
from draft_service.suffix_source import SuffixSource
from draft_service.suffix_store import KeptText
from foredraft.params import Speculation
from foredraft.policy.calibration import Calibration, SequenceCalibration
from foredraft.tree.node_id import child_id
from foredraft.tree.token_tree import Node, Place, TokenTree
from foredraft.wire.messages import Limits, ModelInfo, NodeGroup, OpenSequence, Source

WIDTH = 3  # different guesses of the model at one place
_SURE = 0.9  # a guess of the suffix cache that is a node before the model has looked

Key = tuple[int, int]  # stream of the gateway, seq_id


class Judged(NamedTuple):
    """What became of a node whose parent was committed. ``depth``: when it was made."""

    source: Source
    depth: int
    confidence: float
    chosen: bool


class DraftSequence:
    """State of one sequence.

    answered: all nodes below the root that are likely enough are found.
    awaits_model: the draft model will look at places before the answer is complete.
    announced: the verifier was told so.
    open: options that are no nodes yet.
    ends: tokens that nothing can follow.
    plain: every token is the best one.
    width: different guesses of the model at one place.
    kept: gives what there is at a time of the tenant's finished requests.
    lane: by which its guesses go; None: the gateway relays them.
    """

    def __init__(
        self,
        stream: int,
        opened: OpenSequence,
        target: ModelInfo,
        limits: Limits,
        service: Calibration,
        width: int = WIDTH,
        kept: Callable[[], KeptText | None] = lambda: None,
    ) -> None:
        self.width = width
        self.lane: int | None = None
        self.key: Key = (stream, opened.seq_id)
        self.home = (stream, opened.verify_worker)  # whose steps wait for its guesses
        self.opened = opened
        self.tokens = [*opened.prompt, *opened.committed]
        self.largest_token = max(self.tokens)
        self.tree = TokenTree(
            opened.seq_id, opened.incarnation, self.tokens, limits.max_nodes, limits.max_depth
        )
        self.calibration = SequenceCalibration(service)
        self._suffix_options: dict[int, list[Option]] = {}  # by parent, nodes or not
        self._model_options: dict[int, list[Option]] = {}
        self.open = OpenOptions()
        self.evaluated: set[int] = set()  # nodes whose options the draft model has given
        self.answered = False
        self.awaits_model = False
        self.announced = False
        self.passes = 0  # of the draft model since the last commit
        self.kv: DraftKV | None = None
        self.wants_model = opened.speculation in (Speculation.MODEL, Speculation.AUTO)
        wants_suffix = opened.speculation in (Speculation.SUFFIX, Speculation.AUTO)
        self._suffixes = (
            SuffixSource(self.tokens, self.tree, self.calibration, kept) if wants_suffix else None
        )
        self._judged: list[Judged] = []
        self._changed = [self.tree.root_id]  # places whose options are not in `open` yet
        self._unsent: list[Node] = []
        most = len(opened.prompt) + opened.params.max_tokens
        self._longest = min(most, target.context_length)  # with all that may still come
        self.ends = opened.params.ends(target.eos_token_ids)
        self.plain = opened.params.plain

    @property
    def unfed(self) -> int:
        """Committed tokens that the draft model has no KV entries for."""
        return len(self.tokens) - (0 if self.kv is None else self.kv.fed)

    @property
    def tokens_left(self) -> int:
        """Most that may still come."""
        return self._longest - len(self.tokens)

    def depth_limit(self, max_depth: int) -> int:
        """Deepest useful node: the target adds the very last token itself."""
        return min(max_depth, self.tree.max_depth, self.tokens_left - 1)

    def follows(self, position: int, tokens: Sequence[int]) -> bool:
        """True if these tokens, from ``position`` on, agree with ours and leave no gap."""
        if position > len(self.tokens):
            return False
        known = self.tokens[position : position + len(tokens)]
        return known == list(tokens[: len(known)])

    def commit(self, tokens: Sequence[int]) -> list[Move]:
        """Re-root behind new tokens and learn from them; returns what to move in the KV."""
        before = len(self.tokens)
        path, guessed = self._settle(tokens)
        self.tokens += tokens
        self.largest_token = max(self.largest_token, *tokens)
        self.tree.advance(tokens)
        if self._suffixes is not None:
            self._suffixes.commit(tokens, guessed)
        self._forget()
        self.open.clear()
        self._changed = [self.tree.root_id, *self.tree.nodes]
        self.answered = False
        self.announced = False
        self.passes = 0
        return [] if self.kv is None else self.kv.commit(path, before, self.tree.nodes)

    def note_model_options(self, node_id: int, found: Iterable[Option]) -> None:
        """The draft model has looked at the root or a node; what it said before is replaced."""
        self._model_options[node_id] = list(found)
        self._changed.append(node_id)

    def await_model(self, awaited: bool) -> bool:
        """Whether doubtful guesses wait for what the model says; if it will not, they are open.

        Returns True if there are places that have become open.
        """
        opened = self.awaits_model and not awaited
        self.awaits_model = awaited
        if opened:
            self._changed += self._suffix_options
        return opened and bool(self._changed)

    def take_changed(self) -> list[int]:
        """The root or nodes that have new options, since the last call."""
        changed, self._changed = self._changed, []
        return changed

    def take_judged(self) -> list[Judged]:
        """What became of nodes whose parents were committed, since the last call."""
        judged, self._judged = self._judged, []
        return judged

    def open_options(self, parent_id: int, min_survival: float) -> Sequence[Option]:
        """Guesses for what may follow the root or a node now; the suffix cache is asked once.

        Where the model is awaited, doubtful guesses of the cache wait until it has looked: a
        guess that is a node keeps its confidence, and the model's, which is better founded,
        would come too late.
        """
        if self.is_end(parent_id):
            return []
        if self._suffixes is not None:
            found = self._suffixes.options(parent_id, min_survival)
            self._suffix_options.setdefault(parent_id, []).extend(found)
        options = self.options(parent_id)
        if self.awaits_model and parent_id not in self.evaluated:
            depth = self.tree.depth(parent_id) + 1
            return [option for option in options if self._is_sure(option, depth)]
        return options

    def _is_sure(self, option: Option, depth: int) -> bool:
        """True for what the model has said, and for what needs no word of it."""
        said = option.bucket.source is Source.MODEL
        return said or self.calibration.estimate(option.bucket, depth) >= _SURE

    def options(self, parent_id: int) -> Sequence[Option]:
        """All that is known of what follows the root or a node, nodes or not."""
        suffix = self._suffix_options.get(parent_id, ())
        return merged(self._model_options.get(parent_id, ()), suffix)

    def add(self, parent: Place, option: Option, confidence: float) -> Node | None:
        """Make a node of an option; None if it is one already."""
        token, bucket, trail = option
        node = self.tree.grow(parent, token, confidence, bucket.source)
        if node is None:
            return None
        self._unsent.append(node)
        if self._suffixes is not None:  # else nothing is known of what follows it
            self._changed.append(node.id)
            if trail is not None:
                self._suffixes.added(node.id, trail)
        return node

    def is_end(self, node_id: int) -> bool:
        """True if nothing can follow the node: it ends the sequence."""
        node = self.tree.nodes.get(node_id)
        return node is not None and node.token in self.ends

    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def has_news(self, *, last: bool) -> bool:
        """True if it is time for a message; ``last``: nothing more will come for now.

        Nodes go out after 0, 1, 2, 4, 8, ... passes: few messages, yet the first go at once.
        """
        if self.answered and not self.announced:
            return True
        return bool(self._unsent) and (last or self.passes & (self.passes - 1) == 0)

    def resend(self, orphans: Sequence[int]) -> None:
        """The verifier lacks these nodes: send their paths and subtrees again."""
        wanted = {node.id for node in self._unsent}
        for orphan in orphans:
            if orphan in self.tree.nodes:
                wanted.update(self.tree.lineage(orphan))
                wanted.update(node.id for node in self.tree.walk(orphan))
        self._unsent = [node for node in self.tree.walk() if node.id in wanted]

    def take_group(self) -> NodeGroup:
        """The nodes that were not sent yet, parents before children."""
        unsent, self._unsent = self._unsent, []
        self.announced = self.answered
        return NodeGroup(
            self.opened.seq_id,
            self.opened.incarnation,
            self.tree.root_id,
            self.answered,
            tuple([node.token for node in unsent]),
            tuple([node.parent_id for node in unsent]),
            tuple([node.confidence for node in unsent]),
            tuple([node.source for node in unsent]),
        )

    def _settle(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Teach the calibration what became of the options along the committed path.

        Returns the ids of the committed tokens. Options that never became nodes teach too:
        without them a source that was given up could not come back.
        """
        parent_id = self.tree.root_id
        path: list[int] = []
        guessed = 0
        observe = self.calibration.observe
        for depth, token in enumerate(tokens, start=1):
            made_at = self._judge(parent_id, token)
            for guess, bucket, _ in self._told(parent_id):
                observe(bucket, guess == token, made_at.get(guess, depth))
            suffix = self._suffix_options.get(parent_id, ())
            guessed += token in [option.token for option in suffix]
            parent_id = child_id(parent_id, token)
            path.append(parent_id)
        return path, guessed

    def _told(self, parent_id: int) -> Iterable[Option]:
        """What teaches: guesses as they were alone, and as both sources together made them."""
        alone = self._suffix_options.get(parent_id, ())
        model = self._model_options.get(parent_id)
        return (*alone, *merged(model, alone)) if model else alone

    def _judge(self, parent_id: int, token: int) -> dict[int, int]:
        """The target has chosen ``token``: note what that makes of the nodes below the place.

        Returns the depth at which each was made, by its token.
        """
        if parent_id not in self.tree:
            return {}
        nodes = self.tree.nodes
        below = [nodes[child] for child in self.tree.children(parent_id)]
        self._judged += [
            Judged(node.source, node.made_at, node.confidence, node.token == token)
            for node in below
        ]
        return {node.token: node.made_at for node in below}

    def _forget(self) -> None:
        """Drop what belongs to nodes that are gone."""
        alive = self.tree.nodes.keys() | {self.tree.root_id}
        for options in (self._suffix_options, self._model_options):
            for node in options.keys() - alive:
                del options[node]
        self.evaluated &= alive
        if self._suffixes is not None:
            self._suffixes.forget(alive)
        self._unsent = [node for node in self._unsent if node.id in self.tree.nodes]
