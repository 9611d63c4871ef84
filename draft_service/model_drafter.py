"""Guesses of the draft model, made with the target's own noise.

A candidate's score is what the target would compute from the draft's logits, seed and penalties
included, so at any temperature the best candidate is a guess of the very token that the target
is about to draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draft_service.draft_kv import DraftKV, Move
from draft_service.model_pass import Evaluation
from draft_service.open_options import Option
from draft_service.sequence import DraftSequence
from foredraft.engine.runner import Runner, SequenceRows
from foredraft.engine.sampling import SampledRow, most_likely, perturbed_scores
from foredraft.policy.calibration import model_bucket
from foredraft.wire.messages import ModelInfo

_WIDTH = 3  # different guesses at one place
CATCH_UP_ROWS = 32  # a longer lag is prefilled in chunks, in the background


class ModelDrafter:
    """Runs the draft model for many sequences and keeps their KV in step with their commits."""

    def __init__(self, runner: Runner, target: ModelInfo) -> None:
        self._runner = runner
        self._eos = target.eos_token_ids
        self._vocab_size = min(target.vocab_size, runner.info.vocab_size)
        known = runner.output_ids
        self._output = None if known is None else known.below(self._vocab_size)
        self._columns = self._vocab_size if self._output is None else len(self._output)
        self._context_length = runner.info.context_length

    def warm_up(self) -> None:
        """Run one chunk and one row, so that the first request does not pay for start-up work."""
        tokens = [0] * min(self._runner.chunk, self._context_length - 1)
        pool = self._runner.kv
        blocks = pool.allocate(pool.blocks_for(len(tokens) + 1))
        self._runner.prefill(blocks, tokens, 0)
        self._runner.forward([SequenceRows(blocks, len(tokens), [0], [(len(tokens),)])])
        pool.free(blocks)

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
        kv = sequence.kv or DraftKV(self._runner.kv)
        if not kv.reserve(len(sequence.tokens) + sequence.tree.max_nodes):
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
            self._runner.move(sequence.kv.blocks, moves)

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
        chunk = self._runner.chunk
        start = kv.fed // chunk * chunk
        end = min(start + chunk, len(sequence.tokens) - 1)
        self._runner.prefill(kv.blocks, sequence.tokens[start:end], start)
        kv.fed = end

    @torch.inference_mode()
    def evaluate(self, evaluations: Sequence[Evaluation]) -> None:
        """Feed the chosen nodes in one pass and note their options."""
        batch: list[SequenceRows] = []
        wanted: list[tuple[DraftSequence, int]] = []
        rows: list[int] = []  # of the batch, one per wanted node
        total = 0
        for evaluation in evaluations:
            fed = self._rows(evaluation)
            batch.append(fed)
            total += len(fed.tokens)
            rows += range(total - len(evaluation.nodes), total)
            wanted += [(evaluation.sequence, node_id) for node_id in evaluation.nodes]
        logits = self._runner.forward(batch)[rows, : self._columns]  # a copy
        for evaluation in evaluations:
            self._mark_fed(evaluation)
        self._note_options(logits, wanted)

    def _rows(self, evaluation: Evaluation) -> SequenceRows:
        """Rows of a sequence: committed tokens not fed yet, then nodes."""
        sequence, kv = evaluation.sequence, evaluation.sequence.kv
        assert kv is not None, "only prepared sequences are evaluated"
        committed = len(sequence.tokens)
        root_id = sequence.tree.root_id
        nodes = [node_id for node_id in evaluation.nodes if node_id != root_id]
        kv.place(nodes, committed)
        base = tuple(range(kv.fed, committed))
        paths = [base[: index + 1] for index in range(len(base))]
        for node_id in nodes:
            line = sequence.tree.lineage(node_id)
            paths.append(base + tuple(kv.slots[ancestor] for ancestor in line))
        tokens = sequence.tokens[kv.fed :]
        tokens += [sequence.tree.nodes[node_id].token for node_id in nodes]
        return SequenceRows(kv.blocks, kv.fed, tokens, paths)

    def _mark_fed(self, evaluation: Evaluation) -> None:
        sequence = evaluation.sequence
        sequence.evaluated.update(evaluation.nodes)
        if sequence.kv is not None:
            sequence.kv.fed = len(sequence.tokens)

    def _note_options(self, logits: Tensor, wanted: Sequence[tuple[DraftSequence, int]]) -> None:
        """The best tokens after each wanted node, with the probability of each.

        ``logits`` become scores where they are, and are used up.
        """
        for row, (sequence, node_id) in zip(logits, wanted, strict=True):
            if not sequence.opened.params.plain:
                sampled = self._sampled_row(sequence, node_id)
                row.copy_(perturbed_scores(row, sampled, self._eos, self._output))
        places, chances = most_likely(logits, _WIDTH)
        tokens = places if self._output is None else self._output.ids[places]
        columns = wanted, tokens.tolist(), chances.tolist()
        for (sequence, node_id), ids, values in zip(*columns, strict=True):
            found = (
                Option(token, model_bucket(chance, rank))
                for rank, (token, chance) in enumerate(zip(ids, values, strict=True))
                if chance > 0.0 and rank < sequence.width
            )
            sequence.note_model_options(node_id, found)

    def _sampled_row(self, sequence: DraftSequence, node_id: int) -> SampledRow:
        opened = sequence.opened
        position = len(sequence.tokens) + sequence.tree.depth(node_id)
        penalized = opened.params.penalized
        return SampledRow(
            params=opened.params,
            choice=opened.choice,
            position=position,
            prompt_length=len(opened.prompt),
            history=[*sequence.tokens, *sequence.tree.path(node_id)] if penalized else (),
        )
