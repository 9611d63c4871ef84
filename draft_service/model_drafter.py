"""Guesses of the draft model, made with the target's own noise.

A candidate's score is what the target would compute from the draft's logits, seed and penalties
included, so at any temperature the best candidate is a guess of the very token that the target
is about to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draft_service.draft_kv import DraftKV, Move
from draft_service.engine.draft_engine import DraftEngine, Extension, Guesses
from draft_service.model_pass import Evaluation
from draft_service.open_options import Option
from draft_service.sequence import DraftSequence
from foredraft.engine.sampling import SampledRow
from foredraft.policy.bucket import model_bucket
from foredraft.wire.messages import ModelInfo

CATCH_UP_ROWS = 32  # a longer lag is prefilled in chunks, in the background


class ModelDrafter:
    """Runs the draft model for many sequences and keeps their KV in step with their commits."""

    def __init__(self, engine: DraftEngine, target: ModelInfo) -> None:
        self._engine = engine
        self._vocab_size = min(target.vocab_size, engine.info.vocab_size)
        self._context_length = engine.info.context_length

    def can_follow(self, sequence: DraftSequence) -> bool:
        """False, for good, once the text outgrows the draft's context or holds an id unknown to it.

        The sequence's memory is given back then.
        """
        if not sequence.wants_model:
            return False
        fits = len(sequence.tokens) <= self._context_length
        if fits and sequence.largest_token < self._vocab_size:
            return True
        self.release(sequence)
        sequence.wants_model = False
        return False

    def prepare(self, sequence: DraftSequence) -> bool:
        """Take the memory that the sequence needs now; False if the pool cannot give it.

        Then the sequence holds none, gets no model guesses, and tries again later.
        """
        kv = sequence.kv or DraftKV(self._engine.pool)
        entries = len(sequence.tokens) + sequence.tree.max_nodes
        if not kv.reserve(entries, self._engine.relocate):
            self.release(sequence)
            return False
        sequence.kv = kv
        return True

    def release(self, sequence: DraftSequence) -> None:
        """Forget the sequence's KV."""
        if sequence.kv is not None:
            sequence.kv.release()
            sequence.kv = None
        sequence.evaluated.clear()

    def move(self, sequence: DraftSequence, moves: Sequence[Move]) -> None:
        """Make the KV follow a commit."""
        if sequence.kv is not None and moves:
            self._engine.move(sequence.kv.blocks, moves)

    def reach(self, sequence: DraftSequence) -> int:
        """Depth of the deepest node whose position lies within the draft's context.

        Its token is one that the draft knows: guesses are the draft's own, or come from a text
        that it can read.
        """
        return self._context_length - len(sequence.tokens)

    def lags(self, sequence: DraftSequence) -> bool:
        """True if the KV is too far behind to catch up within an ordinary pass."""
        return sequence.unfed > CATCH_UP_ROWS

    def catch_up(self, sequence: DraftSequence) -> None:
        """Prefill one chunk of committed tokens; the root is left for an ordinary pass."""
        kv = sequence.kv
        if kv is None:
            return
        end = min(kv.fed + self._engine.chunk, len(sequence.tokens) - 1)
        self._engine.prefill(kv.blocks, sequence.tokens[kv.fed : end], kv.fed)
        kv.fed = end

    def evaluate(
        self, evaluations: Sequence[Evaluation], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Feed the chosen nodes in one pass and note their options.

        Args:
            meanwhile: what else there is to do while a GPU computes.
        """

        def keep_books() -> None:
            _mark_fed(evaluations)
            meanwhile()

        guesses = self._engine.extend([self._extension(one) for one in evaluations], keep_books)
        self._note_options(evaluations, guesses)

    def _extension(self, evaluation: Evaluation) -> Extension:
        """Rows of a sequence: committed tokens not fed yet, then nodes."""
        sequence, looked = evaluation
        tree, kv = sequence.tree, sequence.kv
        assert kv is not None, "only prepared sequences are evaluated"
        committed = sequence.tokens[kv.fed :]
        nodes = [node_id for node_id in looked if node_id in tree.nodes]
        tokens: Sequence[int] = ()
        lines: Sequence[Sequence[int]] = ()
        if nodes:
            kv.place(nodes, len(sequence.tokens))
            tokens = [tree.nodes[node_id].token for node_id in nodes]
            lines = [[kv.slots[above] for above in tree.lineage(node_id)] for node_id in nodes]
        looks = _looks(sequence, looked)
        return Extension(kv.blocks, kv.fed, committed, tokens, lines, looks)

    def _note_options(self, evaluations: Sequence[Evaluation], guesses: Guesses) -> None:
        """The best tokens after each wanted node, with the probability of each."""
        columns = zip(guesses.tokens, guesses.chances, strict=True)
        for sequence, nodes in evaluations:
            for node_id in nodes:
                tokens, chances = next(columns)
                ranked = zip(tokens[: sequence.width], chances, strict=False)
                found = [
                    Option(token, model_bucket(chance, rank))
                    for rank, (token, chance) in enumerate(ranked)
                    if chance > 0.0
                ]
                sequence.note_model_options(node_id, found)


def _looks(sequence: DraftSequence, nodes: Sequence[int]) -> Sequence[SampledRow | None]:
    """How the tokens after nodes are drawn; None: that one is the best."""
    if sequence.plain:
        return [None] * len(nodes)
    return [_drawn(sequence, node_id) for node_id in nodes]


def _drawn(sequence: DraftSequence, node_id: int) -> SampledRow:
    """How the token after a node is drawn."""
    opened = sequence.opened
    penalized = opened.params.penalized
    return SampledRow(
        params=opened.params,
        choice=opened.choice,
        position=len(sequence.tokens) + sequence.tree.depth(node_id),
        prompt_length=len(opened.prompt),
        history=[*sequence.tokens, *sequence.tree.path(node_id)] if penalized else (),
    )


def _mark_fed(evaluations: Sequence[Evaluation]) -> None:
    for sequence, nodes in evaluations:
        sequence.evaluated.update(nodes)
        if sequence.kv is not None:
            sequence.kv.fed = len(sequence.tokens)
