"""A whole step without the host: guesses in, nodes chosen, the target run, tokens committed.

Trees, sequences and commits live where the model is. What the host has to say of the next step goes
over in one copy, and the commits of a step come back in one copy that is read while the step after
it runs. On a GPU a step is one CUDA graph per `StepBucket`; nothing in it waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

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
    """What a graph is captured for: most nodes of a step, and whether any slot has filters."""

    nodes: int
    filters: bool = False


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The memory that belongs to a bucket, and what runs a step in it."""

    inputs: Inputs
    choices: Choices
    workspace: SelectWorkspace
    run: Callable[[], None]


class DeviceStep:
    """Steps of one model over the same slots. Not thread-safe: one engine thread owns it.

    options, tables, cost: what the host writes when a sequence opens or grows and when costs have
        changed: how tokens are chosen, block tables int32 [slots, blocks], and float64 [rows + 1],
        the milliseconds of a step by its rows.
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
        self.cost = torch.ones(slots * (1 + limits.nodes) + 1, dtype=torch.float64, device=device)
        self._prepared: dict[StepBucket, _Prepared] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._turn = 0

    def told(self) -> dict[str, Tensor]:
        """What the next step is told, for the host to fill in: nothing new, and no nodes allowed.

        starts, parent_id, token, confidence, source: new guesses, as `Guesses` has them.
        changed: 1 for slots whose columns of `Sequences`, by their names beside it, are new.
        allowed: int32 [1], nodes that the step may verify.
        """
        told = self._inbox.host(self._turn)
        for name in ("starts", "changed", "allowed"):
            told[name].zero_()
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

    def commits(self, turn: int) -> dict[str, Tensor]:
        """What step number ``turn``, one of the last two, did; waits until it has ended.

        The columns of `Commits` by their names; verified: int32 [slots], nodes that were verified;
        outcome: of the guesses. The step after the next one overwrites them.
        """
        return self._outbox.host(turn)

    def again(self, bucket: StepBucket) -> None:
        """What the device does in a step of ``bucket``, without what host and step tell each other.

        For measuring: it goes on from where the last step ended, with what that one was told.
        """
        self._prepared[bucket].run()

    def warm(self, bucket: StepBucket) -> None:
        """Compile and capture, with a step in which nothing happens unless slots are active."""
        self.told()
        self.commits(self.launch(bucket))

    @torch.inference_mode()
    def _prepare(self, bucket: StepBucket) -> _Prepared:
        device, slots = self.tables.device, self.limits.slots
        rows = slots + bucket.nodes
        inputs = Inputs.empty(slots, rows, 0, device)
        prepared = _Prepared(
            inputs=replace(inputs, tables=self.tables),
            choices=Choices.empty(rows, self._vocab, device),
            workspace=SelectWorkspace.empty(
                slots, self.limits.nodes, next_power(max(bucket.nodes, 1)), device
            ),
            run=lambda: None,
        )
        if device.type != "cuda":
            return replace(prepared, run=lambda: self._run(bucket, prepared))
        kept = self._state()
        self._run(bucket, prepared)  # compiles, and makes workspaces
        for tensor, before in kept:
            tensor.copy_(before)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._run(bucket, prepared)
        return replace(prepared, run=graph.replay)

    @torch.inference_mode()
    def _run(self, bucket: StepBucket, prepared: _Prepared) -> None:
        """All launches of a step."""
        limits, inputs, rows = self.limits, prepared.inputs, prepared.inputs.rows
        most_rows = 1 + min(bucket.nodes, limits.nodes)
        told = self._inbox.device
        take_changes(told, told["changed"], self._sequences, self._trees)
        tree_append(self._trees, self._sequences, self._guesses, limits.nodes, limits.depth)
        self._select(bucket, prepared)
        build_inputs(
            self._trees,
            self._sequences,
            self._picked,
            self.tables,
            rows,
            inputs.place,
            inputs.path,
        )
        logits = self._model.step(inputs, Bounds(most_rows, limits.context))
        sample_coupled(logits, self.options, rows, prepared.choices, bucket.filters)
        tree_accept(rows, prepared.choices, self._sequences, self.options, self._commits, most_rows)
        kv_compact(self._model.memory, self.tables, self._commits)
        tree_reroot(self._trees, self._sequences, self._commits)

    def _select(self, bucket: StepBucket, prepared: _Prepared) -> None:
        if not bucket.nodes:
            self._picked.row.zero_()
            self._picked.count.zero_()
            return
        tree_select(
            self._trees,
            self._sequences,
            self.cost,
            self._inbox.device["allowed"],
            len(prepared.inputs.rows.slot),
            prepared.workspace,
            self._picked,
        )

    def _state(self) -> list[tuple[Tensor, Tensor]]:
        """What a step changes for the next one, and copies of it. KV is written again alike."""
        layouts = (self._trees, self._sequences)
        tensors = [getattr(each, field.name) for each in layouts for field in fields(each)]
        tensors.append(self.options.seen)
        return [(tensor, tensor.clone()) for tensor in tensors]


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
        "outcome": Part((limits.guesses,)),
    }
