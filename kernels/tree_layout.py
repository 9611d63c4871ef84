"""How the trees of all sequences lie on the device, and what a step writes beside them.

S slots of sequences, C nodes per tree (a power of two), R rows of a step, P tokens of the longest
commit. Capacities are fixed and tensors stay where they are, so that one CUDA graph per (S, R)
can run over them; the host only adds guesses and reads a step's `Commits` while the next one runs.
What is not said to be something else is int32. Everything is contiguous and on one device.

Nodes 0..count-1 of a slot are in use, parents before children; the root is no node. A node's
parent is its index in the same slot, -1 for the root. Inside a step a sequence has *local* rows:
0 is its root, then come its picked nodes in the order of the tree. Local row j writes the KV slot
``length - 1 + j``; KV slot i holds position i for i < length - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

NO_NODE = -1
_FEWEST_LANES = 32
GOES_ON, STOP, LENGTH, NOT_FINITE = 0, 1, 2, -1  # values of `Commits.finish`


@dataclass(frozen=True, slots=True)
class Trees:
    """token, parent, depth (1 = child of the root), source: [S, C]; count: [S].

    confidence: float32 [S, C].
    survival: float64 [S, C], confidences multiplied from the root down, in this order.
    node_id: int64 [S, C], the bits of the unsigned path hash.
    """

    token: Tensor
    parent: Tensor
    depth: Tensor
    confidence: Tensor
    survival: Tensor
    node_id: Tensor
    source: Tensor
    count: Tensor

    @classmethod
    def empty(cls, slots: int, capacity: int, device: torch.device) -> Trees:
        """Raises ValueError if ``capacity`` is no power of two."""
        if capacity < 1 or capacity & (capacity - 1):
            raise ValueError(f"capacity must be a power of two, not {capacity}")
        shape = (slots, capacity)
        return cls(
            token=_zeros(shape, device),
            parent=_zeros(shape, device),
            depth=_zeros(shape, device),
            confidence=_zeros(shape, device, torch.float32),
            survival=_zeros(shape, device, torch.float64),
            node_id=_zeros(shape, device, torch.int64),
            source=_zeros(shape, device),
            count=_zeros((slots,), device),
        )


@dataclass(frozen=True, slots=True)
class Sequences:
    """Everything [S].

    active: 1 if it takes part in the next step. speculates: 1 if it may have guesses.
    length: committed tokens, prompt and root included.
    limit: tokens beyond which it cannot grow: the context, or prompt + max_tokens.
    node_limit: nodes for whose KV the host has reserved memory.
    root_token; root_id: int64, the hash of the committed path.
    """

    active: Tensor
    speculates: Tensor
    length: Tensor
    limit: Tensor
    node_limit: Tensor
    root_token: Tensor
    root_id: Tensor

    @classmethod
    def empty(cls, slots: int, device: torch.device) -> Sequences:
        shape = (slots,)
        return cls(
            active=_zeros(shape, device),
            speculates=_zeros(shape, device),
            length=_zeros(shape, device),
            limit=_zeros(shape, device),
            node_limit=_zeros(shape, device),
            root_token=_zeros(shape, device),
            root_id=_zeros(shape, device, torch.int64),
        )


@dataclass(frozen=True, slots=True)
class Picked:
    """What a step verifies. row: local rows of picked nodes, 0 for others [S, C]; count: [S].

    promise: float64 [S], tokens that they are thought to bring, the sum of their survivals.
    """

    row: Tensor
    count: Tensor
    promise: Tensor

    @classmethod
    def empty(cls, slots: int, capacity: int, device: torch.device) -> Picked:
        return cls(
            row=_zeros((slots, capacity), device),
            count=_zeros((slots,), device),
            promise=_zeros((slots,), device, torch.float64),
        )


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step; those of a slot stand together, slots ascending.

    start, count: a slot's first row and how many it has (0 if it takes no part): [S].
    slot: -1 for padding. node: index in the tree, -1 for a root. parent: local row of the parent,
        -1 at a root. depth: 0 at a root. token. position: of the token: [R].
    """

    start: Tensor
    count: Tensor
    slot: Tensor
    node: Tensor
    parent: Tensor
    depth: Tensor
    token: Tensor
    position: Tensor

    @classmethod
    def empty(cls, slots: int, rows: int, device: torch.device) -> StepRows:
        per_slot, per_row = (slots,), (rows,)
        return cls(
            start=_zeros(per_slot, device),
            count=_zeros(per_slot, device),
            slot=_zeros(per_row, device) + NO_NODE,
            node=_zeros(per_row, device) + NO_NODE,
            parent=_zeros(per_row, device) + NO_NODE,
            depth=_zeros(per_row, device),
            token=_zeros(per_row, device),
            position=_zeros(per_row, device),
        )


@dataclass(frozen=True, slots=True)
class Commits:
    """What a step did to each slot.

    base: `Sequences.length` before the step: [S].
    path: rows on the accepted path, root included; 0 if the slot took no part: [S].
    rows: local rows of that path, ascending; row i's KV belongs to slot ``base - 1 + i``: [S, P].
    tokens, count: the tokens delivered, which a stop may have cut: [S, P] and [S].
    finish: one of GOES_ON, STOP, LENGTH, NOT_FINITE: [S]. hit: 1 if the new root was a node: [S].
    """

    base: Tensor
    path: Tensor
    rows: Tensor
    tokens: Tensor
    count: Tensor
    finish: Tensor
    hit: Tensor

    @classmethod
    def empty(cls, slots: int, longest: int, device: torch.device) -> Commits:
        """``longest``: tokens of the longest commit, the depth of trees + 1."""
        per_slot = (slots,)
        return cls(
            base=_zeros(per_slot, device),
            path=_zeros(per_slot, device),
            rows=_zeros((slots, longest), device),
            tokens=_zeros((slots, longest), device),
            count=_zeros(per_slot, device),
            finish=_zeros(per_slot, device),
            hit=_zeros(per_slot, device),
        )


def slot_lanes(slots: int) -> int:
    """Lanes of a program that looks at all slots: one machine code serves any few of them."""
    lanes: int = triton.next_power_of_2(slots)
    return max(lanes, _FEWEST_LANES)


def _zeros(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int32
) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
