"""A draft of a target's shape with random weights: what a pass costs does not hang on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from foredraft.engine.model_config import VOCABULARY_FILE, read_json_object, read_model_config
from foredraft.engine.weights import expected_shapes


def make_random_draft(target: Path, path: Path, layers: int, ids: int) -> Path:
    """Write a draft of ``layers`` layers that can guess the first ``ids`` ids, or all if fewer.

    Raises:
        UnsupportedModel: the target's directory is not one that can be run.
    """
    path.mkdir(parents=True, exist_ok=True)
    for file in target.glob("*token*"):
        shutil.copy(file, path)
    content = read_json_object(target / "config.json") | {"num_hidden_layers": layers}
    content.pop("layer_types", None)
    (path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    config = read_model_config(path)
    random = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=random) * shape[-1] ** -0.5
        for name, shape in expected_shapes(config)
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    known = torch.arange(min(ids, config.vocab_rows), dtype=torch.int32)
    save_file({"ids": known}, path / VOCABULARY_FILE)
    return path
