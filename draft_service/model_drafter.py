"""Guesses of the draft model, made with the target's own noise.

A candidate's score is what the target would compute from the draft's logits, seed and penalties
included, so at any temperature the best candidate is a guess of the very token that the target
is about to draw.
"""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.draft_kv import DraftKV, Move
from draft_service.engine.draft_engine import DraftEngine, Extension, Guesses
from draft_service.model_pass import Evaluation
from draft_service.open_options import Option
from draft_service.sequence import DraftSequence
from foredraft.engine.sampling import SampledRow
from foredraft.policy.calibration import model_bucket
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

    def reaches(self, sequence: DraftSequence, node_id: int) -> bool:
        """True if the node's position lies within the draft's context.

        Its token is one that the draft knows: guesses are the draft's own, or come from a text
        that it can read.
        """
        return len(sequence.tokens) + sequence.tree.depth(node_id) <= self._context_length

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

    def evaluate(self, evaluations: Sequence[Evaluation]) -> None:
        """Feed the chosen nodes in one pass and note their options."""
        guesses = self._engine.extend([self._extension(one) for one in evaluations])
        for evaluation in evaluations:
            self._mark_fed(evaluation)
        self._note_options(evaluations, guesses)

    def _extension(self, evaluation: Evaluation) -> Extension:
        """Rows of a sequence: committed tokens not fed yet, then nodes."""
        sequence, kv = evaluation.sequence, evaluation.sequence.kv
        assert kv is not None, "only prepared sequences are evaluated"
        tree = sequence.tree
        nodes = [node_id for node_id in evaluation.nodes if node_id != tree.root_id]
        if nodes:
            kv.place(nodes, len(sequence.tokens))
        return Extension(
            blocks=kv.blocks,
            fed=kv.fed,
            committed=sequence.tokens[kv.fed :],
            nodes=[tree.nodes[node_id].token for node_id in nodes],
            lines=[[kv.slots[above] for above in tree.lineage(node_id)] for node_id in nodes],
            looks=[self._look(sequence, node_id) for node_id in evaluation.nodes],
        )

    def _mark_fed(self, evaluation: Evaluation) -> None:
        sequence = evaluation.sequence
        sequence.evaluated.update(evaluation.nodes)
        if sequence.kv is not None:
            sequence.kv.fed = len(sequence.tokens)

    def _note_options(self, evaluations: Sequence[Evaluation], guesses: Guesses) -> None:
        """The best tokens after each wanted node, with the probability of each."""
        columns = zip(guesses.tokens, guesses.chances, strict=True)
        for evaluation in evaluations:
            sequence = evaluation.sequence
            for node_id in evaluation.nodes:
                ids, values = next(columns)
                found = [
                    Option(token, model_bucket(chance, rank))
                    for rank, (token, chance) in enumerate(zip(ids, values, strict=True))
                    if chance > 0.0 and rank < sequence.width
                ]
                sequence.note_model_options(node_id, found)

    def _look(self, sequence: DraftSequence, node_id: int) -> SampledRow | None:
        """How the token after a node is drawn; None: it is the best one."""
        opened = sequence.opened
        if opened.params.plain:
            return None
        position = len(sequence.tokens) + sequence.tree.depth(node_id)
        penalized = opened.params.penalized
        return SampledRow(
            params=opened.params,
            choice=opened.choice,
            position=position,
            prompt_length=len(opened.prompt),
            history=[*sequence.tokens, *sequence.tree.path(node_id)] if penalized else (),
        )
