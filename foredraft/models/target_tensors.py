"""Tensors that a draft has in common with its target: what the ids are going in and coming out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from foredraft.engine.model_config import (
    UnsupportedModel,
    check_whole,
    read_json_object,
    read_model_config,
)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def read_target_tensor(target: Path, name: str) -> NDArray[np.floating[Any]]:
    """`EMBEDDING` or `HEAD` of a model directory; float16 and wider as it is, else float32.

    Raises:
        UnsupportedModel: the file that must hold it is missing or broken, or does not hold it, or
            the model is no target.
    """
    check_whole(target)
    if name == HEAD and read_model_config(target).tied:
        name = EMBEDDING
    file = target / _file_name(target, name)
    try:
        return _read(file, name)
    except (OSError, SafetensorError) as error:
        text = f"{file.name} of {target.name} does not hold {name}: {error}"
        raise UnsupportedModel(text) from error


def digest(tensor: NDArray[np.floating[Any]]) -> str:
    """SHA-256 of the shape and of the values in float32, whatever type they are held in."""
    sums = hashlib.sha256(json.dumps(tensor.shape).encode())
    for start in range(0, len(tensor), 4096):  # so that a large one is never copied whole
        sums.update(np.ascontiguousarray(tensor[start : start + 4096], dtype="<f4").data)
    return sums.hexdigest()


def _file_name(target: Path, name: str) -> str:
    if not (target / _INDEX).exists():
        return _SINGLE
    homes = read_json_object(target / _INDEX).get("weight_map")
    home = homes.get(name) if isinstance(homes, dict) else None
    if not isinstance(home, str):
        raise UnsupportedModel(
            f"{_INDEX} of {target.name}: weight_map must name the file of {name}"
        )
    return home


def _read(file: Path, name: str) -> NDArray[np.floating[Any]]:
    with safe_open(file, framework="np") as tensors:
        if tensors.get_slice(name).get_dtype() != "BF16":
            found: NDArray[np.floating[Any]] = tensors.get_tensor(name)
            return found
    with safe_open(file, framework="pt") as tensors:  # numpy has no such type; this needs torch
        widened: NDArray[np.float32] = tensors.get_tensor(name).float().numpy()
        return widened
