"""Many answers of the target beside each other, one token of each per step.

Prompts of similar length stand right-aligned in one batch, so that the newest token of every row
has the same slot: one index, held in a tensor, says where a step writes. A step sees whole buckets
of slots, and in eighths no more rows than have answers to go on with. On a GPU there is one CUDA
graph per bucket and number of rows; everywhere else the very same step runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.training.decoder import Decoder, attend, group_mask
from draft_service.training.stopped import Stopped
from foredraft.engine.capture import captured

BUCKET = 128
_PREFILL_TOKENS = 2**16  # of one pass: bounds its activations
_LOOK_EVERY = 16  # steps between two looks at how many rows are done: a look waits for the device
_PARTS = 8  # a step has some eighths of the rows: a CUDA graph for each number would have no end
_LEFT_UNDONE = 0.05  # the last few long answers are cut, or they would hold up a whole batch
_NOTHING = -1  # where an answer has no token
_LEAST = 1e-30  # of an exponential number: its logarithm must be finite


class Answerer:
    """Answers batches of up to ``rows`` prompts.

    Args:
        decoder: the target.
        head: [vocabulary, hidden]; only these ids are ever chosen.
        eos: ids that end an answer, and are its last token.
        length: most tokens of a prompt and its answer together.
        most: most tokens of an answer.
        longest: most tokens of a prompt, if that is known to be less than ``length``.
    """

    def __init__(
        self,
        decoder: Decoder,
        head: Tensor,
        eos: Sequence[int],
        rows: int,
        length: int,
        most: int,
        longest: int | None = None,
    ) -> None:
        self._length = length
        self._most = most
        self._eos = torch.tensor(list(eos), dtype=torch.int64, device=head.device)
        # The longest prompt decides where answers begin, and the shortest how long they may be.
        slots = (length if longest is None else longest) + most
        self._steps = _Steps(decoder, head, rows, -(-slots // BUCKET) * BUCKET)

    @torch.no_grad()
    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        seed: int,
        stop: Event | None = None,
        tell: Callable[[float, int], None] = lambda share, tokens: None,
    ) -> list[list[int]]:
        """As many tokens for each prompt as are allowed, or up to its EOS.

        Equal arguments give equal answers. Temperature 0 is greedy. The batch ends early when 95 %
        of its answers have ended: the others stay as long as they are then. Now and then ``tell``
        gets the share of the steps that are done, from 0 to 1, and how many tokens are there.

        Raises:
            Stopped: ``stop`` was set meanwhile.
        """
        steps, device = self._steps, self._eos.device
        count, width = len(prompts), max(len(prompt) for prompt in prompts)
        limits = [min(self._most, self._length - len(prompt)) for prompt in prompts]
        rows = steps.begin(*_aligned(prompts, steps.rows_for(count), width))
        heat = torch.zeros(rows, 1, device=device)
        heat[:count, 0] = torch.tensor(temperatures, device=device)
        limit = torch.zeros(rows, dtype=torch.int64, device=device)  # 0: a row without a prompt
        limit[:count] = torch.tensor(limits, device=device)
        chance = torch.Generator(device).manual_seed(seed) if any(temperatures) else None
        places = torch.arange(rows, device=device)  # of the rows that are run, in ``answers``
        done = limit == 0
        answers = torch.full((rows, max(limits)), _NOTHING, dtype=torch.int64, device=device)
        for number in range(max(limits)):
            chosen = _choose(steps.logits(width + number), heat, chance)
            answers[:, number].index_copy_(0, places, chosen.masked_fill(done, _NOTHING))
            done |= (chosen[:, None] == self._eos).any(dim=-1) | (limit <= number + 1)
            steps.advance(chosen)
            look = number % _LOOK_EVERY == _LOOK_EVERY - 1
            if look or device.type == "cpu":  # there a step takes seconds, and to look is for free
                tell((number + 1) / max(limits), int((answers != _NOTHING).sum()))
            if look:
                ended = done.cpu().numpy()
                live = len(ended) - int(ended.sum())
                if live <= int(_LEFT_UNDONE * count):
                    break
                if stop is not None and stop.is_set():
                    raise Stopped
                fewer = steps.rows_for(live)
                if fewer < len(ended):
                    kept = torch.from_numpy(_kept(ended, fewer)).to(device)
                    steps.keep(kept, width + number)
                    places, done, heat, limit = places[kept], done[kept], heat[kept], limit[kept]
        lengths = (answers != _NOTHING).sum(dim=1).tolist()
        return [ids[:length] for ids, length in zip(answers.tolist(), lengths, strict=True)][:count]


class _Steps:
    """Keys, values, inputs and logits of a step, all of which stay where they are.

    Only the first ``active`` rows are run.
    """

    def __init__(self, decoder: Decoder, head: Tensor, rows: int, slots: int) -> None:
        shape, device = decoder.shape, head.device
        self._sizes = sorted({-(-rows * part // _PARTS) for part in range(1, _PARTS + 1)})
        self._active = rows
        self._decoder = decoder
        self._head = head
        size = (len(decoder.layers), 2, rows, shape.kv_heads, slots, shape.head_dim)
        self._kv = torch.zeros(size, dtype=head.dtype, device=device)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._starts = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._logits = torch.zeros(rows, len(head), dtype=head.dtype, device=device)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def rows_for(self, count: int) -> int:
        """The fewest rows that a step may have and ``count`` of them fit in."""
        return next(size for size in self._sizes if size >= count)

    def begin(self, tokens: Tensor, starts: Tensor) -> int:
        """Take prompts [rows, width], which begin at ``starts``; the last token is left to come.

        Returns their number, the rows of the next step.
        """
        tokens, starts = tokens.to(self._tokens.device), starts.to(self._tokens.device)
        self._active, width = tokens.shape
        self._starts[: self._active] = starts
        self._tokens[: self._active] = tokens[:, -1]
        self._slot.fill_(width - 1)
        if width > 1:
            piece = max(1, _PREFILL_TOKENS // width)
            for first in range(0, self._active, piece):
                rows = slice(first, min(first + piece, self._active))
                self._prefill(rows, tokens[rows, :-1], starts[rows])
        return self._active

    def logits(self, seen: int) -> Tensor:
        """Of the newest tokens, [active, vocabulary]; ``seen`` slots are filled, theirs included.

        The next such call writes to the same place.
        """
        bucket = -(-seen // BUCKET) * BUCKET
        if self._head.device.type != "cuda":
            self._step(bucket)
        else:
            key = (bucket, self._active)
            if key not in self._graphs:
                self._graphs[key] = self._capture(bucket)
            self._graphs[key].replay()
        return self._logits[: self._active]

    def advance(self, tokens: Tensor) -> None:
        """The next step runs ``tokens`` [active], one slot further."""
        self._tokens[: self._active].copy_(tokens)
        self._slot += 1

    def keep(self, rows: Tensor, seen: int) -> None:
        """Go on with these rows only, in this order; ``seen`` slots are filled."""
        self._active = len(rows)
        moved = torch.arange(len(rows), device=rows.device)[rows >= len(rows)]
        for held in (*self._kv[..., :seen, :].flatten(0, 1), self._tokens, self._starts):
            held[moved] = held[rows[moved]]

    def _capture(self, bucket: int) -> torch.cuda.CUDAGraph:
        """Run the step aside first, as libraries set themselves up then; it only repeats writes.

        Graphs share the memory of what is between their inputs and the logits: no two run at once.
        """
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(bucket)
        torch.cuda.current_stream().wait_stream(aside)
        known = next(iter(self._graphs.values()), None)
        with captured(None if known is None else known.pool()) as graph:
            self._step(bucket)
        return graph

    def _step(self, bucket: int) -> None:
        """Nothing here waits for the device or depends on a value that is there."""
        tokens, starts = self._tokens[: self._active], self._starts[: self._active]
        slots = torch.arange(bucket, device=self._slot.device)
        visible = (slots >= starts[:, None]) & (slots <= self._slot)
        mask = group_mask(visible[:, None], self._decoder.shape.group, self._kv.dtype)

        def attend_memory(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._kv[layer, :, : self._active]
            keys.index_copy_(2, self._slot, k.transpose(1, 2))
            values.index_copy_(2, self._slot, v.transpose(1, 2))
            return attend(q, keys[:, :, :bucket], values[:, :, :bucket], mask)

        # Answers that have ended are run on, beyond the last position that there is.
        positions = (self._slot - starts)[:, None].clamp_(max=len(self._decoder.turns.cos) - 1)
        hidden = self._decoder(tokens[:, None], positions, attend_memory)
        torch.mm(hidden[:, 0], self._head.t(), out=self._logits[: self._active])

    def _prefill(self, rows: slice, tokens: Tensor, starts: Tensor) -> None:
        width = tokens.shape[1]
        slots = torch.arange(width, device=tokens.device)
        visible = (slots <= slots[:, None]) & (slots >= starts[:, None, None])
        # What stands before a prompt sees itself alone: a row that sees nothing would be NaN.
        visible = visible | (slots == slots[:, None])
        mask = group_mask(visible, self._decoder.shape.group, self._kv.dtype)

        def attend_prompt(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = k.transpose(1, 2), v.transpose(1, 2)
            self._kv[layer, 0, rows, :, :width] = keys
            self._kv[layer, 1, rows, :, :width] = values
            return attend(q, keys, values, mask)

        positions = (slots - starts[:, None]).clamp_(min=0)
        self._decoder(tokens, positions, attend_prompt)


def _aligned(prompts: Sequence[Sequence[int]], rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Prompts that end at the same slot, [rows, width], and where each begins; rows left over have
    one token."""
    tokens = torch.zeros(rows, width, dtype=torch.int64)
    starts = torch.full((rows,), width - 1, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        starts[row] = width - len(prompt)
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
    return tokens, starts


def _kept(ended: NDArray[np.bool_], fewer: int) -> NDArray[np.int64]:
    """Numbers of the ``fewer`` rows to go on with, all that have not ended among them.

    Few are moved: those that live behind the first ``fewer`` take places of such as have ended.
    """
    kept = np.arange(fewer)
    late = fewer + np.flatnonzero(~ended[fewer:])
    kept[np.flatnonzero(ended[:fewer])[: len(late)]] = late
    return kept


def _choose(logits: Tensor, heat: Tensor, chance: torch.Generator | None) -> Tensor:
    """The ids that maximise logits + T · G, G = -log E with E exponential: samples at T, [rows].

    Logits are [rows, vocabulary], T = ``heat`` [rows, 1]; without ``chance`` all is greedy.
    """
    if chance is None:
        return logits.argmax(dim=-1)
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=chance)
    return logits.addcmul(noise.clamp_(min=_LEAST).log_(), heat, value=-1.0).argmax(dim=-1)
