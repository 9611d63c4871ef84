"""Shape of a Llama-type model, read from a Hugging Face directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)


class UnsupportedModel(ValueError):
    """The directory holds no model that this engine can run; the text says why."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretched rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_rows: int  # rows of the embedding, padding included
    context_length: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied: bool
    eos_token_ids: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


def read_model_config(directory: Path) -> ModelConfig:
    """Read config.json and generation_config.json.

    Raises:
        UnsupportedModel: no such file, another architecture, or an option we do not run.
    """
    raw = _read_json(directory / "config.json")
    architecture = (raw.get("architectures") or ["none"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        allowed = ", ".join(SUPPORTED_ARCHITECTURES)
        raise UnsupportedModel(f"architecture {architecture} is not supported; allowed: {allowed}")
    for option in ("attention_bias", "mlp_bias"):
        if raw.get(option):
            raise UnsupportedModel(f"{option} is not supported")
    if raw.get("quantization_config"):
        raise UnsupportedModel("quantization_config is not supported: the weights must be plain")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"hidden_act {raw['hidden_act']} is not supported")
    heads = int(raw["num_attention_heads"])
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return ModelConfig(
        layers=int(raw["num_hidden_layers"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        vocab_rows=int(raw["vocab_size"]),
        context_length=int(raw["max_position_embeddings"]),
        rms_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope),
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_eos_ids(directory, raw),
    )


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"rope_type {kind} is not supported; allowed: default, llama3")
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )


def _eos_ids(directory: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    path = directory / "generation_config.json"
    chosen = _read_json(path).get("eos_token_id") if path.exists() else None
    if chosen is None:
        chosen = raw.get("eos_token_id")
    if chosen is None:
        return ()
    return tuple(chosen) if isinstance(chosen, list) else (int(chosen),)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{path.name} is missing from the model directory") from error
    return content
