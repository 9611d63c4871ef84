"""A widened model as a Hugging Face directory, written one file of weights after another."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from foredraft.engine.model_config import (
    check_whole,
    read_json_object,
    read_model_config,
)
from foredraft.engine.weights import WeightFiles, check_weights, expected_shapes
from foredraft.models.companions import companions, copy_companions
from foredraft.models.fetch import ModelError
from foredraft.models.widen.card import wide_card
from foredraft.models.widen.shape import Shape
from foredraft.models.widen.wide_weights import WideWeights
from foredraft.models.widen.widening import CONTEXT, PAD_VOCABULARY, Widening, plan_widening
from foredraft.params import InvalidField
from foredraft.tokenizer_hash import tokenizer_identity

DESTINATION = "DST"
FILE_BYTES = 2**31  # a file is in memory as a whole before it is written
_SMALL_FILES = 2**20  # configuration, index, card and the headers of weights


@dataclass(frozen=True, slots=True)
class WideDirectory:
    """A directory that can be made.

    dtype: "bfloat16" or "float32", that of the files.
    """

    source: Path
    widening: Widening
    dtype: str
    seed: int

    @property
    def parameters(self) -> int:
        return count_parameters(self.widening)

    @property
    def weight_bytes(self) -> int:
        return self.parameters * _type(self.dtype).itemsize

    def check_room(self, destination: Path) -> None:
        """Find out before hours of work whether `write` will be able to.

        Raises:
            InvalidField: there is something already, or no folder for it.
            ModelError: the disk has no room; names the bytes.
        """
        parent = destination.absolute().parent
        if destination.exists() or not parent.is_dir():
            allowed = "a directory that is not there yet, in a folder that is"
            raise InvalidField(DESTINATION, f"{allowed}, not {str(destination)!r}")
        small = sum(file.stat().st_size for file in companions(self.source))
        needed = self.weight_bytes + small + _SMALL_FILES
        free = shutil.disk_usage(parent).free
        if needed > free:
            raise ModelError(f"{destination} takes {_told(needed)}, but {_told(free)} are free")

    def write(self, destination: Path, file_bytes: int = FILE_BYTES) -> Iterator[int]:
        """Write it, whole or not at all; tells the bytes of every tensor when it is made.

        A file of weights has at most ``file_bytes``, unless one tensor alone has more. So many
        are held at a time, and what `WideWeights` needs for one tensor.

        Raises:
            UnsupportedModel: the source has weights that are not finite.
            OSError, SafetensorError: the destination cannot be written.
        """
        parent = destination.absolute().parent
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{destination.name}-") as scratch:
            made = Path(scratch) / destination.name
            made.mkdir()
            copy_companions(self.source, made)
            _write_json(made / "config.json", self._config())
            (made / "README.md").write_text(wide_card(self.source.name, self.widening, self.seed))
            yield from self._write_weights(made, file_bytes)
            made.rename(destination)

    def _write_weights(self, made: Path, file_bytes: int) -> Iterator[int]:
        files = plan_files(self.widening, file_bytes, _type(self.dtype).itemsize)
        homes: dict[str, str] = {}
        with ExitStack() as stack:
            read = WeightFiles(self.source, stack)
            make = WideWeights(read, self.widening, seed=self.seed, dtype=_type(self.dtype))
            for number, names in enumerate(files, 1):
                file = made / f"model-{number:05d}-of-{len(files):05d}.safetensors"
                tensors = {}
                for name in names:
                    tensors[name] = make(name)
                    yield tensors[name].nbytes
                save_file(tensors, file, metadata={"format": "pt"})
                file.chmod(0o644)  # it is made for its owner only
                homes |= dict.fromkeys(names, file.name)
        index = {"metadata": {"total_size": self.weight_bytes}, "weight_map": homes}
        _write_json(made / "model.safetensors.index.json", index)

    def _config(self) -> dict[str, Any]:
        """The source's, with other sizes."""
        config = read_json_object(self.source / "config.json")
        target = self.widening.target
        config.pop("torch_dtype", None)  # the older name of the last field
        config |= {
            "num_hidden_layers": target.layers,
            "hidden_size": target.hidden,
            "intermediate_size": target.intermediate,
            "num_attention_heads": target.heads,
            "num_key_value_heads": target.kv_heads,
            "head_dim": target.head_dim,
            "vocab_size": target.vocab_rows,
            "max_position_embeddings": max(config["max_position_embeddings"], CONTEXT),
            "rms_norm_eps": target.rms_eps,
            "tie_word_embeddings": target.tied,
            "dtype": self.dtype,
        }
        if config.get("layer_types") is not None:
            config["layer_types"] = ["full_attention"] * target.layers
        return config


def read_widening(source: Path, shape: Shape, vocabulary: int | None = None) -> Widening:
    """The widening of the model in ``source``, none of whose weights is read.

    Raises:
        InvalidField: as `plan_widening`; or the embedding cannot be padded.
        UnsupportedModel: the directory holds no model that can be a target.
    """
    check_whole(source)
    config = read_model_config(source)
    check_weights(source, config)
    entries = tokenizer_identity(source).vocab_size
    if vocabulary is not None and entries > config.vocab_rows:
        # The engine masks rows without an entry; here an entry would get one that is no token's.
        raise InvalidField(
            PAD_VOCABULARY,
            f"left out: the source has {config.vocab_rows} rows for the tokenizer's {entries} ids",
        )
    return plan_widening(config, shape, vocabulary)


def count_parameters(widening: Widening) -> int:
    """Numbers in all tensors of the target; a tied head is none."""
    return sum(math.prod(shape) for _, shape in expected_shapes(widening.target))


def plan_files(widening: Widening, file_bytes: int, itemsize: int) -> list[list[str]]:
    """Names of the tensors of each file, in the order of the model."""
    files: list[list[str]] = [[]]
    room = file_bytes
    for name, shape in expected_shapes(widening.target):
        size = math.prod(shape) * itemsize
        if size > room and files[-1]:
            files.append([])
            room = file_bytes
        files[-1].append(name)
        room -= size
    return files


def _type(name: str) -> torch.dtype:
    made: torch.dtype = getattr(torch, name)
    return made


def _told(count: int) -> str:
    return f"{count} bytes ({count / 1e9:.1f} GB)"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
