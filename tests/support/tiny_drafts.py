"""Tiny drafts as training leaves them: fewer layers, and the target's own embedding and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from support.tiny_models import make_tiny_model

_SHARED = ("model.embed_tokens.weight", "lm_head.weight")


def make_tiny_draft(path: Path, target: Path, family: str = "llama", **options: Any) -> Path:
    """Write a draft of one layer for ``target``; options as those that made the target."""
    more = {"norm_spread": 0.2} | options | {"layers": 1, "seed": 5}
    make_tiny_model(path, family, **more)
    theirs = {k: v for file in target.glob("*.safetensors") for k, v in load_file(file).items()}
    file = path / "model.safetensors"
    own = load_file(file)
    shared = {name: theirs[name] for name in _SHARED if name in own}
    save_file(own | shared, file, metadata={"format": "pt"})
    (path / "README.md").write_text("# A tiny draft\n\nLettres: é.\n", encoding="utf-8")
    return path
