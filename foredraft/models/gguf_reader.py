"""Read the parts of a GGUF file that a conversion needs: metadata and dequantised tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from foredraft.models.fetch import ModelError


class GgufFile:
    """A GGUF file, memory-mapped. Metadata keys without an architecture are used as they stand."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        self.path = path
        self.architecture = str(self["general.architecture"])

    def __getitem__(self, key: str) -> Any:
        """The value of ``key``; a missing key is an error that names it."""
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.path.name} has no metadata entry {key}")
        return value

    def get(self, key: str) -> Any | None:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def hyperparameter(self, key: str) -> Any:
        """A metadata entry that the file keeps under its architecture's name."""
        return self[f"{self.architecture}.{key}"]

    def tensor_names(self) -> list[str]:
        return [tensor.name for tensor in self._reader.tensors]

    def stored(self) -> Iterator[tuple[str, gguf.GGMLQuantizationType, NDArray[Any]]]:
        """Every tensor by its GGUF name as it stands in the file: its kind and its bytes or floats.

        Those of a matrix of blocks are uint8 [rows, bytes of a row].
        """
        for tensor in self._reader.tensors:
            yield tensor.name, tensor.tensor_type, tensor.data

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Every tensor by its GGUF name, dequantised to float32."""
        for name, kind, data in self.stored():
            values = gguf.quants.dequantize(data, kind)
            yield name, np.ascontiguousarray(values, dtype=np.float32)
