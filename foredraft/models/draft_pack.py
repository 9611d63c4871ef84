"""A trained draft as one small file, without what is its target's own.

A safetensors file: linear weights as int8 with one float32 scale per output row (``NAME`` and
``NAME.scales``), norms and biases in float32, the ids of a reduced vocabulary (``ids``, int32).
Its metadata hold config.json, the model card, the target's id, and the SHA-256 of each tensor that
is the target's and was left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from foredraft.models.fetch import ModelError
from foredraft.models.int8_rows import Int8Rows
from foredraft.models.tensor_file import write_tensors

_FORMAT = "foredraft draft, 1"
_SCALES = ".scales"
_IDS = "ids"
_DIGEST = "sha256"
_ENTRIES = {"format", "target", "left_out", "config", "card", _DIGEST}

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class DraftPack:
    """What a packed draft holds.

    target: id of the model that it was made for.
    left_out: SHA-256 of the tensors that it shares with the target, by name.
    ids: of the reduced vocabulary, int32 [n]; None: the head is whole.
    """

    target: str
    left_out: dict[str, str]
    config: dict[str, Any]
    card: str
    matrices: dict[str, Int8Rows]
    vectors: dict[str, NDArray[np.float32]]
    ids: NDArray[np.int32] | None

    def write(self, file: Path) -> None:
        """Whole or not at all. Raises OSError: there is no room or no right to write."""
        tensors, entries = self._tensors(), self._entries()
        entries[_DIGEST] = _digest(entries, tensors)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".pack-") as scratch:
            made = Path(scratch) / file.name
            write_tensors(tensors, made, entries)
            os.replace(made, file)

    @property
    def sha256(self) -> str:
        """Of all that it holds."""
        return _digest(self._entries(), self._tensors())

    def _entries(self) -> dict[str, str]:
        return {
            "format": _FORMAT,
            "target": self.target,
            "left_out": json.dumps(self.left_out, sort_keys=True),
            "config": json.dumps(self.config, sort_keys=True),
            "card": self.card,
        }

    def _tensors(self) -> Tensors:
        tensors: Tensors = dict(self.vectors)
        for name, rows in self.matrices.items():
            tensors |= {name: rows.values, name + _SCALES: rows.scales}
        return tensors if self.ids is None else tensors | {_IDS: self.ids}


def read_pack(file: Path) -> DraftPack:
    """Read a packed draft.

    Raises:
        ModelError: it is missing, broken or no packed draft; names the file.
    """
    try:
        with safe_open(file, framework="np") as content:
            entries: dict[str, str] = content.metadata() or {}
            if entries.get("format") != _FORMAT or entries.keys() != _ENTRIES:
                raise ModelError(f"{file} is no packed draft that this version reads")
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"packed draft {file} cannot be read: {error}") from error
    if _digest(entries, tensors) != entries[_DIGEST]:
        raise ModelError(f"packed draft {file} is damaged: its SHA-256 is not what it says itself")
    return _unfold(entries, tensors)


def _unfold(entries: dict[str, str], tensors: Tensors) -> DraftPack:
    """The digest was right, so everything is as `DraftPack.write` left it."""
    ids = tensors.pop(_IDS, None)
    scales = {name for name in tensors if name.endswith(_SCALES)}
    matrices = {name.removesuffix(_SCALES) for name in scales}
    return DraftPack(
        target=entries["target"],
        left_out=json.loads(entries["left_out"]),
        config=json.loads(entries["config"]),
        card=entries["card"],
        matrices={name: Int8Rows(tensors[name], tensors[name + _SCALES]) for name in matrices},
        vectors={name: tensors[name] for name in tensors.keys() - scales - matrices},
        ids=ids,
    )


def _digest(entries: dict[str, str], tensors: Tensors) -> str:
    said = {name: entries[name] for name in sorted(entries) if name != _DIGEST}
    sums = hashlib.sha256(json.dumps(said).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sums.update(json.dumps([name, tensor.dtype.str, tensor.shape]).encode())
        sums.update(np.ascontiguousarray(tensor).data)
    return sums.hexdigest()
