"""Steps that the device prepares and decides, of which the host learns one step later.

The host keeps a copy of every tree: what guesses are orphans, what a step is worth waiting for and
what a sequence that changes its slot has, it knows from that. All that it tells and is told goes
through a `DeviceStep`'s mailboxes, or behind the steps that run, in the order of their stream; so
it may free, give away and fill blocks that a step still uses.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foredraft.engine.fp8.device_step import DeviceStep, StepBucket, StepLimits
from foredraft.engine.fp8.inputs import next_power
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.fp8.slot_options import Chosen, biases_at_most, ends_at_most, write_slot
from foredraft.engine.fp8.step_buckets import StepBuckets
from foredraft.engine.fp8.upload import upload
from foredraft.params import FinishReason
from foredraft.policy.cost import StepCost
from foredraft.tree.node_id import signed
from foredraft.wire.messages import Limits, NodeGroup, StepTimings, TokenLogprobs
from kernels.tree_layout import GOES_ON, LENGTH, NOT_FINITE, STOP
from verify_service.acceptance import Ending
from verify_service.device_profile import profile_buckets
from verify_service.reservations import Reservations
from verify_service.seats import Seat, Seats
from verify_service.sequence import Guess, VerifySequence
from verify_service.step import Outcome, choose_nodes, committed, logprobs_of, unsound
from verify_service.steps import StepDone

log = logging.getLogger(__name__)

_GUESSES = 1024  # that a step is told; more wait for the next one
_MOST_NODES = 256  # of a step, for which kernels are made
_COSTS_EVERY = 16  # steps; they change slowly
_FINISH = {GOES_ON: None, STOP: FinishReason.STOP, LENGTH: FinishReason.LENGTH}

Columns = Mapping[str, NDArray[np.generic]]
Found = Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence's part in a step that runs: how many tokens it may commit at most."""

    slot: int
    sequence: VerifySequence
    most: int


@dataclass(frozen=True, slots=True)
class _Running:
    turn: int
    bucket: StepBucket
    parts: list[_Part]
    since: float


class DeviceSteps:
    """As `Steps` says: a step is started before the one before it is finished."""

    behind = 1

    def __init__(self, runner: Fp8Runner, memory: Reservations, limits: Limits) -> None:
        self.stalled = False
        self._runner = runner
        self._memory = memory
        self._limits = limits
        slots, eos = next_power(limits.max_sequences), runner.info.eos_token_ids
        tree = next_power(limits.max_nodes)
        self._most_nodes = min(limits.max_nodes, _MOST_NODES, slots * tree)
        self._step: DeviceStep = runner.device_step(
            StepLimits(
                slots=slots,
                context=runner.info.context_length,
                nodes=tree,
                depth=limits.max_depth,
                guesses=_GUESSES,
                biases=biases_at_most(),
                ends=ends_at_most(eos),
            )
        )
        self._buckets = StepBuckets(slots, self._most_nodes)
        self._seats = Seats()
        self._lines: list[list[int]] = [[] for _ in range(slots)]  # what the block tables hold
        self._running: deque[_Running] = deque()
        self._started = 0
        self._ended = 0.0

    def warm(self) -> StepCost:
        self._runner.warm()
        began = time.perf_counter()
        shapes = [replace(b, filters=f) for b in self._buckets for f in (False, True)]
        if self._runner.on_gpu:
            self._step.compile(shapes)
        compiled = time.perf_counter()
        for bucket in shapes:
            self._step.warm(bucket)
        log.info(
            "steps of up to %d sequences and %d guesses run on the device, trees and sampling "
            "included: kernels compiled in %.1f s, %d graphs captured in %.1f s",
            self._step.limits.slots,
            self._most_nodes,
            compiled - began,
            len(shapes),
            time.perf_counter() - compiled,
        )
        return profile_buckets(self._runner, self._step, self._buckets)

    def attach(self, sequence: VerifySequence, group: NodeGroup) -> None:
        new = sequence.attach(group)
        seat = self._seats.find(sequence)
        if seat is not None and seat.told and sequence.speculates:
            seat.unsent += new

    def may_follow(self, ready: Sequence[VerifySequence]) -> bool:
        """Not where logits are still to be read or slots to be changed, nor if all have ended."""
        if not self._running:
            return True
        if self._running[-1].bucket.logits or self._seats.sprawl(ready):
            return False
        return any(one.ahead == 0 or one.budget > len(self._running) for one in ready)

    def start(self, ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost) -> int:
        seats = self._seats.take(ready, move=not self._running)
        allowed = min(max_nodes, self._most_nodes)
        bucket = self._bucket(seats, len(choose_nodes(ready, allowed, cost)))
        self._tell_cost(cost)
        told = {name: tensor.numpy() for name, tensor in self._step.told().items()}
        told["active"].fill(0)
        told["allowed"][0] = min(allowed, bucket.nodes)
        parts = [self._tell(seat, told, bucket.nodes) for seat in seats]
        _tell_guesses(seats, told)
        self.stalled = not self._step.is_ready(bucket)
        turn = self._step.launch(bucket)
        for part in parts:
            part.sequence.ahead += part.most
        self._running.append(_Running(turn, bucket, parts, time.perf_counter()))
        return len(ready) + bucket.nodes

    def finish(self) -> StepDone:
        step = self._running[0]
        try:
            found = _found(self._step.commits(step.turn), step.bucket)
            ended = time.perf_counter()
            outcomes = self._outcomes(step, found)
        except Exception:
            self._running.clear()
            self._seats.clear()
            raise
        self._running.popleft()
        since, self._ended = max(step.since, self._ended), ended
        promised: defaultdict[int, float] = defaultdict(float)
        for part in step.parts:
            if self._memory.holds(part.sequence):
                promised[part.sequence.stream] += found["promise"][part.slot]
        timings = StepTimings(
            forward_us=_us(ended - since), commit_us=_us(time.perf_counter() - ended)
        )
        rows = sum(_rows(found, part.slot) for part in step.parts)
        return StepDone(outcomes, timings, rows, promised)

    def _bucket(self, seats: Sequence[Seat], nodes: int) -> StepBucket:
        return self._buckets.smallest(
            seats[-1].slot + 1,
            nodes,
            filters=any(seat.sequence.opened.params.filtered for seat in seats),
            logits=any(seat.sequence.opened.params.logprobs is not None for seat in seats),
        )

    def _tell_cost(self, cost: StepCost) -> None:
        if self._started % _COSTS_EVERY == 0:
            rows = self._step.limits.slots + self._most_nodes
            table = np.array([cost(count) for count in range(rows + 1)], np.float64)
            upload(self._step.cost[: len(table)], table)
        self._started += 1

    def _tell(self, seat: Seat, told: Columns, most: int) -> _Part:
        """Memory for the sequence's rows, and all that the device does not know of it."""
        slot, sequence = seat.slot, seat.sequence
        nodes = self._reserve(sequence, most)
        told["active"][slot], told["node_limit"][slot] = 1, nodes
        if not seat.told:
            self._introduce(seat, told)
        self._tell_blocks(slot, sequence.blocks)
        return _Part(slot, sequence, 1 + min(nodes, self._limits.max_depth))

    def _introduce(self, seat: Seat, told: Columns) -> None:
        slot, sequence = seat.slot, seat.sequence
        told["changed"][slot] = 1
        told["speculates"][slot] = sequence.speculates
        told["length"][slot] = len(sequence.tokens)
        told["limit"][slot] = sequence.longest
        told["root_token"][slot] = sequence.tokens[-1]
        told["root_id"][slot] = signed(sequence.tree.root_id)
        opened = sequence.opened
        prompt = len(opened.prompt)
        chosen = Chosen(opened.params, opened.choice, sequence.tokens, prompt, sequence.stops)
        write_slot(self._step.options, slot, chosen)
        seat.told = True
        seat.unsent = []
        if sequence.speculates:
            nodes = sequence.tree.walk()
            seat.unsent = [(n.parent_id, n.token, n.confidence, n.source) for n in nodes]

    def _reserve(self, sequence: VerifySequence, most: int) -> int:
        """Take memory for guesses, at most as many; returns for how many there is."""
        nodes = min(most, len(sequence.tree)) if sequence.speculates else 0
        entries = min(sequence.longest, len(sequence.tokens) + sequence.ahead)
        while nodes and not self._memory.can_grow(sequence, entries + nodes):
            nodes -= 1
        self._memory.grow(sequence, entries + nodes)
        return nodes

    def _tell_blocks(self, slot: int, blocks: list[int]) -> None:
        """The table's line holds zeros behind what the sequence has."""
        known = self._lines[slot]
        if known != blocks:
            line = np.zeros(max(len(known), len(blocks)), np.int32)
            line[: len(blocks)] = blocks
            line = line[: self._step.tables.shape[1]]  # more is ahead of need
            upload(self._step.tables[slot, : len(line)], line)
            self._lines[slot] = list(blocks)

    def _outcomes(self, step: _Running, found: Found) -> list[Outcome]:
        """Of sequences that are still there: what came of others is dropped."""
        row, outcomes = 0, []
        for part in step.parts:
            rows = _rows(found, part.slot)
            if rows and self._memory.holds(part.sequence):
                outcomes.append(self._outcome(step, part, found, row))
            row += rows
        return outcomes

    def _outcome(self, step: _Running, part: _Part, found: Found, row: int) -> Outcome:
        """``row``: the step's first of the sequence."""
        slot, sequence = part.slot, part.sequence
        sequence.ahead -= part.most
        finish = found["finish"][slot]
        if finish == NOT_FINITE or sequence.unscorable:
            return unsound(sequence)
        path, count = found["path"][slot], found["count"][slot]
        tokens = tuple(found["tokens"][slot][:count])
        logprobs: tuple[TokenLogprobs, ...] = ()
        if step.bucket.logits:
            rows = [row + local for local in found["rows"][slot][:path]]
            logprobs = logprobs_of(sequence, rows, tokens, self._step.logits(step.bucket))
        ending = Ending(tokens, _FINISH[finish])
        if ending.finish is not None:
            sequence.ahead = 0  # it has no part in steps behind
        outcome = committed(sequence, found["verified"][slot], path, ending, logprobs)
        if (seat := self._seats.find(sequence)) is not None:
            seat.unsent = [guess for guess in seat.unsent if guess[0] in sequence.tree]
        return outcome


def _tell_guesses(seats: Iterable[Seat], told: Columns) -> None:
    """As many as there is room for, slot by slot."""
    counts = np.zeros(len(told["starts"]) - 1, np.int32)
    guesses: list[Guess] = []
    for seat in seats:
        taken = seat.unsent[: len(told["token"]) - len(guesses)]
        counts[seat.slot] = len(taken)
        guesses += taken
        del seat.unsent[: len(taken)]
    if guesses:
        parents, tokens, confidences, sources = zip(*guesses, strict=True)
        told["parent_id"][: len(guesses)] = [signed(parent) for parent in parents]
        told["token"][: len(guesses)] = tokens
        told["confidence"][: len(guesses)] = confidences
        told["source"][: len(guesses)] = sources
    told["starts"][1:] = list(accumulate(counts.tolist()))


def _rows(found: Found, slot: int) -> int:
    """How many rows of the step a slot had."""
    took_part = found["path"][slot] > 0 or found["finish"][slot] == NOT_FINITE
    return 1 + found["verified"][slot] if took_part else 0


def _found(commits: Mapping[str, Tensor], bucket: StepBucket) -> Found:
    """Columns as lists, whose entries are read faster."""
    names = ["path", "count", "tokens", "finish", "verified", "promise"]
    if bucket.logits:
        names.append("rows")
    return {name: commits[name][: bucket.slots].numpy().tolist() for name in names}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
