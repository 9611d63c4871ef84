"""What a pass is told of its rows, in tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft.engine.attention_plan import TILE as KV_TILE
from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.fp8.upload import upload
from foredraft.engine.kv import BLOCK
from kernels.attention_tiles import TILE
from kernels.tree_layout import NO_NODE, StepRows

DEEPEST = TILE  # rows below a root that attention takes
_PATH = DEEPEST + 1
_ALIGNMENT = 4  # numbers
_PER_SLOT = ("start", "count")
_PER_ROW = ("slot", "node", "parent", "depth", "token", "position", "place")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a launch is made for: rows of one sequence, and the highest position."""

    most_rows: int
    most_context: int


def table_blocks(context: int, rows: int) -> int:
    """Blocks of the whole tiles that hold a full context and ``rows`` new rows behind it."""
    return -(-(context + rows) // KV_TILE) * (KV_TILE // BLOCK)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of a step, or of a chunk, as the kernels read them; int32 throughout.

    place: of each row in the KV pool, -1 for padding: [rows].
    path: local rows of each row's ancestors by depth, itself last: [rows, DEEPEST + 1].
    tables: block tables [slots, blocks]; what a sequence holds beyond that is ahead of need.
    memory: all of it but for the tables, in one piece, so that one copy fills it.
    """

    rows: StepRows
    place: Tensor
    path: Tensor
    tables: Tensor
    memory: Tensor

    @classmethod
    def empty(cls, slots: int, rows: int, blocks: int, device: torch.device) -> Inputs:
        """All rows are padding."""
        memory = torch.from_numpy(_nothing(slots, rows)).to(device)
        parts = dict(_split(memory, slots, rows))
        place, path = parts.pop("place"), parts.pop("path")
        tables = torch.zeros(slots, blocks, dtype=torch.int32, device=device)
        return cls(StepRows(**parts), place, path, tables, memory)

    def fill(self, batch: Sequence[SequenceRows]) -> None:
        """Take in the rows of ``batch``; what is left over is padding.

        Raises:
            ValueError: a row stands more than DEEPEST below its sequence's context.
        """
        slots, rows = len(self.rows.start), len(self.rows.slot)
        upload(self.memory, _lay_out(batch, slots, rows))
        width = min(max(len(one.blocks) for one in batch), self.tables.shape[1])
        tables = np.zeros((len(batch), width), np.int32)
        for line, sequence in zip(tables, batch, strict=True):
            known = sequence.blocks[:width]
            line[: len(known)] = known
        upload(self.tables[: len(batch), :width], tables)

    def fill_chunk(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Take in a chunk of a prompt: every row sees the positions before it as committed.

        Without tokens and blocks all rows are padding.
        """
        memory = _nothing(1, len(self.rows.slot))
        parts, count = dict(_split(memory, 1, len(self.rows.slot))), len(tokens)
        positions = np.arange(start, start + count)
        parts["count"][0] = count
        parts["slot"][:count] = 0
        parts["token"][:count] = tokens
        parts["position"][:count] = positions
        table = np.asarray(blocks, np.int32)
        parts["place"][:count] = table[positions // BLOCK] * BLOCK + positions % BLOCK
        upload(self.memory, memory)
        width = min(len(table), self.tables.shape[1])
        if width:
            upload(self.tables[0, :width], table[:width])


def next_power(count: int) -> int:
    """The least power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()


def _lay_out(batch: Sequence[SequenceRows], slots: int, rows: int) -> np.ndarray:
    memory = _nothing(slots, rows)
    parts = dict(_split(memory, slots, rows))
    row = 0
    for slot, sequence in enumerate(batch):
        parts["start"][slot], parts["count"][slot] = row, len(sequence.tokens)
        table = sequence.blocks
        for token, path in zip(sequence.tokens, sequence.paths, strict=True):
            depth = len(path) - 1
            if depth > DEEPEST:
                raise ValueError(f"a path must have at most {_PATH} rows, not {len(path)}")
            parts["slot"][row], parts["depth"][row] = slot, depth
            parts["token"][row], parts["position"][row] = token, sequence.context + depth
            parts["place"][row] = table[path[-1] // BLOCK] * BLOCK + path[-1] % BLOCK
            parts["path"][row, : depth + 1] = path
            parts["path"][row, : depth + 1] -= sequence.context
            row += 1
    return memory


def _nothing(slots: int, rows: int) -> np.ndarray:
    columns = len(_PER_SLOT) * _aligned(slots) + len(_PER_ROW) * _aligned(rows)
    memory = np.zeros(columns + _PATH * rows, np.int32)
    for name, part in _split(memory, slots, rows):
        if name in ("slot", "node", "parent", "place"):
            part.fill(NO_NODE)
    return memory


def _split(memory: Any, slots: int, rows: int) -> Iterator[tuple[str, Any]]:
    """The parts of a flat array or tensor, by their names in `StepRows` and `Inputs`.

    All are aligned alike: a kernel is compiled anew for pointers that are not.
    """
    at = 0
    for names, size in ((_PER_SLOT, slots), (_PER_ROW, rows)):
        for name in names:
            yield name, memory[at : at + size]
            at += _aligned(size)
    yield "path", memory[at:].reshape(rows, _PATH)


def _aligned(count: int) -> int:
    """Numbers up to where the next part may begin."""
    return -(-count // _ALIGNMENT) * _ALIGNMENT
