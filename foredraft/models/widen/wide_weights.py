"""A widened model's tensors, each made when it is asked for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import torch
from torch import Tensor

from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.widen.layout import (
    OUTER_PARTS,
    Axis,
    Part,
    Rest,
    axes,
    layer_parts,
)
from foredraft.models.widen.widening import Widening

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class WideWeights:
    """Gives any tensor of the target, as a reader of files would.

    Random weights are normal, with the standard deviation that the source's own have in that
    matrix (in added layers: those of its last one), so what flows stays as large as there. They are
    a function of the seed, the tensor's name and the kind of device; the function that the model
    computes depends on none of the three.
    """

    def __init__(
        self,
        read: Callable[[str], Tensor],
        widening: Widening,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        """``read`` gives the source's tensors by their names in a Hugging Face directory."""
        self._read = read
        self._widening = widening
        self._seed = seed
        self._dtype = dtype
        self._device = device or torch.device("cpu")
        self._parts = layer_parts(widening)
        self._axes = axes(widening, self._device)

    def layer(self, number: int) -> dict[str, Tensor]:
        """All tensors of a layer, by their full names."""
        names = [f"model.layers.{number}.{part}" for part in self._parts]
        return {name: self(name) for name in names}

    def __call__(self, name: str) -> Tensor:
        """Computed in float32 and rounded once; needs twice a tensor's bytes in float32.

        Raises:
            KeyError: the target has no such tensor.
            UnsupportedModel: the source has values there that are not finite.
        """
        if name in OUTER_PARTS:
            copied = name == _HEAD and self._widening.source.tied
            return self._widened(OUTER_PARTS[name], name, _EMBEDDING if copied else name)
        found = _LAYER.fullmatch(name)
        if found is None or int(found[1]) >= self._widening.target.layers:
            raise KeyError(name)
        number, part, layers = int(found[1]), found[2], self._widening.source.layers
        template = f"model.layers.{min(number, layers - 1)}.{part}"
        return self._widened(self._parts[part], name, template, added=number >= layers)

    def _widened(self, part: Part, name: str, template: str, *, added: bool = False) -> Tensor:
        """``added``: the layer is none of the source's, and has to change nothing."""
        source = self._finite(template)
        source *= getattr(self._widening.scales, part.scale)
        around = [self._axes[axis] for axis in part.axes]
        made = torch.zeros([axis.size for axis in around], device=self._device)
        if part.rest is Rest.NOISE:
            made.normal_(0.0, _deviation(source), generator=self._random(name))
            if not added:
                made[around[0].owned] = 0.0
        elif part.rest is Rest.SCALE:
            made.fill_(getattr(self._widening.scales, part.scale))
        if not added or part.rest is Rest.SCALE:
            made[_where(around)] = source
        return made.to(self._dtype)

    def _finite(self, name: str) -> Tensor:
        """A copy of the source's tensor."""
        source = self._read(name).to(self._device, torch.float32, copy=True)
        if not source.isfinite().all():
            raise UnsupportedModel(f"weight {name} has values that are not finite")
        return source

    def _random(self, name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        return torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8]))


def _deviation(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def _where(around: list[Axis]) -> tuple[Tensor, ...]:
    """Index of the source's entries: rows as a column, so that they meet each column."""
    rows, *columns = (axis.places for axis in around)
    return (rows[:, None], *columns) if columns else (rows,)
