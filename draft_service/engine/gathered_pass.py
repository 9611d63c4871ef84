"""A pass of a fixed shape in the library's operations, anywhere."""

from __future__ import annotations

from bisect import bisect_left
from itertools import product

import torch
from torch import Tensor

from draft_service.engine.attention import GatheredAttention
from draft_service.engine.forward import DraftForward
from draft_service.engine.guesser import Guesser
from draft_service.engine.memory import SlotMemory
from draft_service.engine.pass_input import LINE, PassInput
from draft_service.engine.rows import Rows
from draft_service.engine.static_pass import ROWS, Shape, rows_for
from foredraft.engine.sampling import only_noise

_REACHES = (256, 512, 1024, 2048, 4096, 8192)
_WARM_REACHES = _REACHES[:3]
_MOST_COPIED = 2**17  # entries of all rows in one layer


class GatheredPass:
    """As `FixedPass` says. Every row has a copy of what it may see."""

    warm = tuple(
        Shape(count, reach, noisy)
        for reach, count, noisy in product(_WARM_REACHES, ROWS, (False, True))
    )

    def __init__(self, forward: DraftForward, memory: SlotMemory, guesser: Guesser) -> None:
        self._forward = forward
        self._memory = memory
        self._guesser = guesser
        self._reach = torch.arange(_REACHES[-1], device=memory.entries.device)

    def shape_of(self, rows: Rows) -> Shape | None:
        count = rows_for(rows)
        if count is None or rows.reach > _REACHES[-1] or rows.deepest > LINE:
            return None
        reach = _REACHES[bisect_left(_REACHES, rows.reach)]
        if count * reach > _MOST_COPIED:
            return None
        noisy = any(look is not None and only_noise(look) for look in rows.looks)
        return Shape(count, reach, noisy)

    def compute(self, given: PassInput, shape: Shape) -> tuple[Tensor, Tensor]:
        attention = GatheredAttention(self._memory, given, self._reach[: shape.reach])
        logits = self._forward.logits(given.token, given.position, attention)
        logits = logits[:, : self._guesser.columns]
        scores = logits.float()
        if shape.noisy:
            heats = given.heat[:, None].float()
            scores = self._guesser.perturbed(scores, given.key[:, None], heats)
        return logits, self._guesser.best(scores)
