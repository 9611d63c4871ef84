"""A whole step without the host: guesses in, nodes chosen, the target run, tokens committed.

Trees, sequences and commits live where the model is. What the host has to say of the next step goes
over in one copy, and the commits of a step come back in one copy that is read while the step after
it runs. On a GPU a step is one CUDA graph per `StepBucket`; nothing in it waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from foredraft.engine.capture import captured
from foredraft.engine.fp8.compile_ahead import compiling_ahead
from foredraft.engine.fp8.inputs import DEEPEST, Bounds, Inputs, next_power, table_blocks
from foredraft.engine.fp8.mailbox import Mailbox, Part
from foredraft.engine.fp8.model import Model
from kernels.build_inputs import build_inputs
from kernels.kv_compact import kv_compact
from kernels.sample_coupled import Choices, sample_coupled
from kernels.sampling_options import SamplingOptions
from kernels.take_changes import take_changes
from kernels.tree_accept import tree_accept
from kernels.tree_append import Guesses, tree_append
from kernels.tree_layout import Commits, Picked, Sequences, Trees
from kernels.tree_reroot import tree_reroot
from kernels.tree_select import SelectWorkspace, tree_select

_Layout = TypeVar("_Layout", Trees, Sequences, Picked, SamplingOptions, Commits)
_ROOT = "root_id"  # the one column of `Sequences` that has 64 bits


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Capacities, which are fixed when a step is made.

    slots: sequences. nodes: of a tree, a power of two. depth: of a node. guesses: that one step is
    told. biases, ends: ids of one sequence, powers of two. context: positions.

    Raises:
        ValueError: attention does not reach so deep.
    """

    slots: int
    context: int
    nodes: int = 64
    depth: int = 32
    guesses: int = 256
    biases: int = 64
    ends: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= DEEPEST:
            raise ValueError(f"depth must be from 1 to {DEEPEST}, not {self.depth}")


@dataclass(frozen=True, slots=True)
class StepBucket:
    """What a graph is captured for.

    nodes: most of a step. filters: whether any slot has top-k, top-p or min-p.
    slots: sequences have the first so many; None: any. rows: of the pass, padding included; None:
    as many as there may be. logits: whether they are kept.
    """

    nodes: int
    filters: bool = False
    slots: int | None = None
    rows: int | None = None
    logits: bool = False


@dataclass(frozen=True, slots=True)
class _State:
    """What the kernels of a step work on: the first slots of everything."""

    trees: Trees
    sequences: Sequences
    guesses: Guesses
    picked: Picked
    options: SamplingOptions
    commits: Commits
    tables: Tensor


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The memory that belongs to a bucket, and what runs a step in it."""

    state: _State
    inputs: Inputs
    choices: Choices
    workspace: SelectWorkspace
    logits: Tensor | None
    run: Callable[[], None]


class DeviceStep:
    """Steps of one model over the same slots. Not thread-safe: one engine thread owns it.

    options, tables, cost: what the host writes when a sequence opens or grows and when costs have
        changed: how tokens are chosen, block tables int32 [slots, blocks], and float64 [more than
        rows], the milliseconds of a step by its rows.
    """

    def __init__(self, model: Model, limits: StepLimits, vocab: int) -> None:
        device = model.memory.codes.device
        slots = limits.slots
        self.limits = limits
        self._model = model
        self._vocab = vocab
        self._inbox = Mailbox(_told(limits), device)
        self._outbox = Mailbox(_tells(limits), device)
        self._trees = Trees.empty(slots, limits.nodes, device)
        self._sequences = Sequences.empty(slots, device)
        self._picked = Picked(
            row=torch.zeros(slots, limits.nodes, dtype=torch.int32, device=device),
            count=self._outbox.device["verified"],
            promise=self._outbox.device["promise"],
        )
        told, tells = self._inbox.device, self._outbox.device
        self._guesses = Guesses(
            **{name: told[name] for name in ("starts", "parent_id", "token", "confidence")},
            source=told["source"],
            outcome=tells["outcome"],
        )
        self._commits = Commits(**{field.name: tells[field.name] for field in fields(Commits)})
        self.options = SamplingOptions.empty(slots, vocab, limits.biases, limits.ends, device)
        blocks = table_blocks(limits.context, 1 + limits.nodes)
        self.tables = torch.zeros(slots, blocks, dtype=torch.int32, device=device)
        most_rows = 2 * next_power(slots * (1 + limits.nodes))
        self.cost = torch.ones(most_rows + 1, dtype=torch.float64, device=device)
        self._prepared: dict[StepBucket, _Prepared] = {}
        self._choices: dict[int, Choices] = {}  # by rows: one step runs at a time
        self._kept: dict[int, Tensor] = {}  # logits, by rows
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._turn = 0

    def told(self) -> dict[str, Tensor]:
        """What the next step is told, for the host to fill in: nothing new, and no nodes allowed.

        starts, parent_id, token, confidence, source: new guesses, as `Guesses` has them.
        changed: 1 for slots whose columns of `Sequences`, by their names beside it, are new.
        active: of other slots, 0 for those that shall take part no longer. node_limit: of all.
        allowed: int32 [1], nodes that the step may verify.
        """
        told = self._inbox.host(self._turn)
        for name in ("starts", "changed", "allowed"):
            told[name].zero_()
        told["active"].fill_(1)
        told["node_limit"].fill_(self.limits.nodes)
        return told

    def launch(self, bucket: StepBucket) -> int:
        """Start the next step behind those that run, as `told`; its number, for its `commits`.

        Raises:
            ValueError: more nodes are allowed than the bucket holds, or it holds too many.
        """
        allowed = int(self._inbox.host(self._turn)["allowed"])
        most = self.limits.slots * self.limits.nodes
        if not 0 <= allowed <= bucket.nodes <= most:
            raise ValueError(
                f"allowed nodes must be at most those of the bucket, {bucket.nodes}, and these "
                f"at most {most}; not {allowed}"
            )
        turn, self._turn = self._turn, self._turn + 1
        self._inbox.send(turn)
        prepared = self._prepared.get(bucket)
        if prepared is None:
            prepared = self._prepared[bucket] = self._prepare(bucket)
        prepared.run()
        self._outbox.fetch(turn)
        return turn

    def is_ready(self, bucket: StepBucket) -> bool:
        """False if a graph has to be captured for the first step in ``bucket``."""
        return bucket in self._prepared

    def commits(self, turn: int) -> dict[str, Tensor]:
        """What step number ``turn``, one of the last two, did; waits until it has ended.

        The columns of `Commits` by their names; verified: int32 [slots], nodes that were verified;
        promise: float64 [slots], the sum of their survivals; outcome: of the guesses, for tests and
        benchmarks. Of slots that the step's bucket leaves out they mean nothing. The step after the
        next one overwrites them.
        """
        return self._outbox.host(turn)

    def logits(self, bucket: StepBucket) -> Tensor:
        """Of the newest step, one in a ``bucket`` that keeps them: float32 [rows, vocabulary]."""
        kept = self._prepared[bucket].logits
        if kept is None:
            raise ValueError("the bucket must keep logits")
        return kept

    def again(self, bucket: StepBucket) -> None:
        """What the device does in a step of ``bucket``, without what host and step tell each other.

        For measuring: it goes on from where the last step ended, with what that one was told.
        """
        self._prepared[bucket].run()

    @torch.inference_mode()
    def compile(self, buckets: Iterable[StepBucket]) -> None:
        """Compile what steps in ``buckets`` launch, many kernels at a time, on a GPU."""
        model = self._model.first_layer()
        with compiling_ahead():
            for bucket in buckets:
                self._run(model, bucket, self._memory_for(bucket))

    def warm(self, bucket: StepBucket) -> None:
        """Compile and capture, with a step in which nothing happens unless slots are active."""
        self.told()
        self.commits(self.launch(bucket))

    @torch.inference_mode()
    def _prepare(self, bucket: StepBucket) -> _Prepared:
        device = self.tables.device
        prepared = self._memory_for(bucket)
        if device.type != "cuda":
            return replace(prepared, run=lambda: self._run(self._model, bucket, prepared))
        kept = self._changing()
        self._run(self._model, bucket, prepared)  # compiles, and makes workspaces
        for tensor, before in kept:
            tensor.copy_(before)
        torch.cuda.synchronize(device)
        with captured(self._pool) as graph:
            self._run(self._model, bucket, prepared)
        return replace(prepared, run=graph.replay)

    def _memory_for(self, bucket: StepBucket) -> _Prepared:
        """All that a step in ``bucket`` needs but for what runs it."""
        device, limits = self.tables.device, self.limits
        slots = limits.slots if bucket.slots is None else bucket.slots
        rows = slots + bucket.nodes if bucket.rows is None else bucket.rows
        state = self._first(slots)
        if rows not in self._choices:
            self._choices[rows] = Choices.empty(rows, self._vocab, device)
        if bucket.logits and rows not in self._kept:
            self._kept[rows] = torch.zeros(rows, self._vocab, device=device)
        most = next_power(max(bucket.nodes, limits.nodes))
        return _Prepared(
            state=state,
            inputs=replace(Inputs.empty(slots, rows, 0, device), tables=state.tables),
            choices=self._choices[rows],
            workspace=SelectWorkspace.empty(slots, limits.nodes, most, device),
            logits=self._kept[rows] if bucket.logits else None,
            run=lambda: None,
        )

    def _first(self, slots: int) -> _State:
        return _State(
            trees=_part(self._trees, slots),
            sequences=_part(self._sequences, slots),
            guesses=replace(self._guesses, starts=self._guesses.starts[: slots + 1]),
            picked=_part(self._picked, slots),
            options=_part(self.options, slots),
            commits=_part(self._commits, slots),
            tables=self.tables[:slots],
        )

    @torch.inference_mode()
    def _run(self, model: Model, bucket: StepBucket, prepared: _Prepared) -> None:
        """All launches of a step. What changes is told of all slots, whatever the bucket."""
        limits, state, inputs = self.limits, prepared.state, prepared.inputs
        trees, sequences, rows = state.trees, state.sequences, inputs.rows
        most_rows = 1 + min(bucket.nodes, limits.nodes)
        told = self._inbox.device
        take_changes(told, told["changed"], self._sequences, self._trees)
        tree_append(trees, sequences, state.guesses, limits.nodes, limits.depth)
        self._select(bucket, prepared)
        build_inputs(trees, sequences, state.picked, state.tables, rows, inputs.place, inputs.path)
        logits = model.step(inputs, Bounds(most_rows, limits.context))
        if prepared.logits is not None:
            prepared.logits.copy_(logits)
        sample_coupled(logits, state.options, rows, prepared.choices, bucket.filters)
        tree_accept(rows, prepared.choices, sequences, state.options, state.commits, most_rows)
        kv_compact(model.memory, state.tables, state.commits)
        tree_reroot(trees, sequences, state.commits)

    def _select(self, bucket: StepBucket, prepared: _Prepared) -> None:
        state = prepared.state
        if not bucket.nodes:
            for column in (state.picked.row, state.picked.count, state.picked.promise):
                column.zero_()
            return
        tree_select(
            state.trees,
            state.sequences,
            self.cost,
            self._inbox.device["allowed"],
            len(prepared.inputs.rows.slot),
            prepared.workspace,
            state.picked,
        )

    def _changing(self) -> list[tuple[Tensor, Tensor]]:
        """What a step changes for the next one, and copies of it. KV is written again alike."""
        layouts = (self._trees, self._sequences)
        tensors = [getattr(each, field.name) for each in layouts for field in fields(each)]
        tensors.append(self.options.seen)
        return [(tensor, tensor.clone()) for tensor in tensors]


def _part(layout: _Layout, slots: int) -> _Layout:
    """The first slots of a layout, in the same memory."""
    return replace(layout, **{f.name: getattr(layout, f.name)[:slots] for f in fields(layout)})


def _told(limits: StepLimits) -> dict[str, Part]:
    """64-bit parts are as all others: parts are aligned."""
    slots, guesses, long = (limits.slots,), (limits.guesses,), torch.int64
    parts = {field.name: Part(slots) for field in fields(Sequences)}
    return {
        **parts,
        _ROOT: Part(slots, long),
        "changed": Part(slots),
        "allowed": Part((1,)),
        "starts": Part((limits.slots + 1,)),
        "parent_id": Part(guesses, long),
        "token": Part(guesses),
        "confidence": Part(guesses, torch.float32),
        "source": Part(guesses),
    }


def _tells(limits: StepLimits) -> dict[str, Part]:
    slots, longest = (limits.slots,), (limits.slots, limits.depth + 1)
    parts = {field.name: Part(slots) for field in fields(Commits)}
    return {
        **parts,
        "rows": Part(longest),
        "tokens": Part(longest),
        "verified": Part(slots),
        "promise": Part(slots, torch.float64),
        "outcome": Part((limits.guesses,)),
    }
