"""Many answers of the target beside each other, one token of each per step.

Prompts of similar length stand right-aligned in one batch, so that the newest token of every row
has the same slot: one index, held in a tensor, says where a step writes. A step sees whole buckets
of slots, and half the rows once half of the answers have ended. On a GPU there is one CUDA graph
per bucket and number of rows; everywhere else the very same step runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

import torch
from torch import Tensor
from torch.nn import functional

from draft_service.training.decoder import Decoder, attend, group_mask
from draft_service.training.stopped import Stopped

BUCKET = 128
_PREFILL_TOKENS = 2**16  # of one pass: bounds its activations
_LOOK_EVERY = 16  # steps between two looks at how many rows are done: a look waits for the device
_FEWEST_ROWS = 4  # a step has at least a fourth of the rows, or there would be graphs without end
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
    """

    def __init__(
        self, decoder: Decoder, head: Tensor, eos: Sequence[int], rows: int, length: int
    ) -> None:
        self._decoder = decoder
        self._length = length
        self._eos = torch.tensor(list(eos), dtype=torch.int64, device=head.device)
        self._steps = _Steps(decoder, head, rows, -(-length // BUCKET) * BUCKET)

    @torch.no_grad()
    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        seed: int,
        most: int,
        stop: Event | None = None,
        tell: Callable[[float, int], None] = lambda share, tokens: None,
    ) -> list[list[int]]:
        """Up to ``most`` tokens for each prompt, its EOS included if it came.

        Equal arguments give equal answers. Temperature 0 is greedy. The batch ends early when 95 %
        of its answers have ended: the others stay as long as they are then. Now and then ``tell``
        gets the share of the steps that are done, from 0 to 1, and how many tokens are there.

        Raises:
            Stopped: ``stop`` was set meanwhile.
        """
        steps, device = self._steps, self._eos.device
        count, rows = len(prompts), steps.rows
        width = max(len(prompt) for prompt in prompts)
        most = min(most, self._length - width)
        tokens, starts = _aligned(prompts, rows, width)
        steps.begin(tokens.to(device), starts.to(device))
        heat = torch.zeros(rows, 1, device=device)
        heat[:count, 0] = torch.tensor(temperatures, device=device)
        chance = torch.Generator(device).manual_seed(seed) if any(temperatures) else None
        places = torch.arange(rows, device=device)  # of the rows that are run, in ``answers``
        done = places >= count  # rows without a prompt
        answers = torch.full((rows, most), _NOTHING, dtype=torch.int64, device=device)
        for number in range(most):
            chosen = _choose(steps.logits(width + number), heat, chance)
            answers[:, number].index_copy_(0, places, chosen.masked_fill(done, _NOTHING))
            done |= (chosen[:, None] == self._eos).any(dim=-1)
            steps.advance(chosen)
            look = number % _LOOK_EVERY == _LOOK_EVERY - 1
            if look or device.type == "cpu":  # there a step takes seconds, and to look is for free
                tell((number + 1) / most, int((answers != _NOTHING).sum()))
            if look:
                live = int((~done).sum())
                if live <= int(_LEFT_UNDONE * count):
                    break
                if stop is not None and stop.is_set():
                    raise Stopped
                half = steps.active // 2
                if live <= half and half >= rows // _FEWEST_ROWS:
                    kept = done.to(torch.uint8).argsort(stable=True)[:half]
                    steps.keep(kept)
                    places, done, heat = places[kept], done[kept], heat[kept]
        lengths = (answers != _NOTHING).sum(dim=1).tolist()
        return [ids[:length] for ids, length in zip(answers.tolist(), lengths, strict=True)][:count]


class _Steps:
    """Keys, values and inputs of a step, all of which stay where they are.

    Only the first ``active`` rows are run.
    """

    def __init__(self, decoder: Decoder, head: Tensor, rows: int, slots: int) -> None:
        shape, device = decoder.shape, head.device
        self.rows = self.active = rows
        self._decoder = decoder
        self._head = head
        size = (len(decoder.layers), 2, rows, shape.kv_heads, slots, shape.head_dim)
        self._kv = torch.zeros(size, dtype=head.dtype, device=device)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._starts = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def begin(self, tokens: Tensor, starts: Tensor) -> None:
        """Take prompts [rows, width], which begin at ``starts``; the last token is left to come."""
        last = tokens.shape[1] - 1
        self.active = self.rows
        self._starts.copy_(starts)
        self._tokens.copy_(tokens[:, last])
        self._slot.fill_(last)
        if last:
            piece = max(1, _PREFILL_TOKENS // last)
            for first in range(0, self.rows, piece):
                rows = slice(first, first + piece)
                self._prefill(rows, tokens[rows, :last], starts[rows])

    def logits(self, seen: int) -> Tensor:
        """Of the newest tokens, [active, vocabulary]; ``seen`` slots are filled, theirs included.

        On a GPU the next such call writes to the same place.
        """
        bucket = -(-seen // BUCKET) * BUCKET
        if self._head.device.type != "cuda":
            return self._step(bucket)
        key = (bucket, self.active)
        if key not in self._graphs:
            self._graphs[key] = self._capture(bucket)
        graph, logits = self._graphs[key]
        graph.replay()
        return logits

    def advance(self, tokens: Tensor) -> None:
        """The next step runs ``tokens`` [active], one slot further."""
        self._tokens[: self.active].copy_(tokens)
        self._slot += 1

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, as the first ones."""
        self.active = len(rows)
        for held in (*self._kv.flatten(0, 1), self._tokens, self._starts):
            held[: self.active] = held[rows]

    def _capture(self, bucket: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Run the step aside first, as libraries set themselves up then; it only repeats writes."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self._step(bucket)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._step(bucket)
        return graph, logits

    def _step(self, bucket: int) -> Tensor:
        """Nothing here waits for the device or depends on a value that is there."""
        tokens, starts = self._tokens[: self.active], self._starts[: self.active]
        slots = torch.arange(bucket, device=self._slot.device)
        visible = (slots >= starts[:, None]) & (slots <= self._slot)
        mask = group_mask(visible[:, None], self._decoder.shape.group, self._kv.dtype)

        def attend_memory(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._kv[layer, :, : self.active]
            keys.index_copy_(2, self._slot, k.transpose(1, 2))
            values.index_copy_(2, self._slot, v.transpose(1, 2))
            return attend(q, keys[:, :, :bucket], values[:, :, :bucket], mask)

        positions = (self._slot - starts)[:, None]
        hidden = self._decoder(tokens[:, None], positions, attend_memory)
        return functional.linear(hidden[:, 0], self._head)

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


def _choose(logits: Tensor, heat: Tensor, chance: torch.Generator | None) -> Tensor:
    """The ids that maximise logits + T · G, G = -log E with E exponential: samples at T, [rows].

    Logits are [rows, vocabulary], T = ``heat`` [rows, 1]; without ``chance`` all is greedy.
    """
    scores = logits.float()
    if chance is not None:
        noise = torch.empty_like(scores).exponential_(generator=chance).clamp_(min=_LEAST).log_()
        scores = scores.addcmul_(noise, heat, value=-1.0)
    return scores.argmax(dim=-1)
