"""Shape of a model, read from a Hugging Face directory."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.engine.family import FAMILIES, Family

VOCABULARY_FILE = "draft_vocabulary.safetensors"  # in directories of drafts: ids that they guess
BLOCK_FILE = "blocks.safetensors"  # the weights once more, as a GGUF file held them
# Far beyond any of these models. A larger number is a slip, and would end in a failed allocation.
_MOST = 2**24


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
    context_length: int  # positions served
    sliding_window: int | None  # positions that a row sees; the context ends there at the latest
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied: bool
    qkv_bias: bool
    head_norms: bool
    eos_token_ids: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


class Fields:
    """Fields of a JSON object, each checked where it is read.

    A field that is null counts as absent, as in the library that writes these files.
    """

    def __init__(self, place: str, content: dict[str, Any]) -> None:
        self._place = place  # what errors name before the field
        self._content = content

    def __contains__(self, name: str) -> bool:
        """True also where it is null."""
        return name in self._content

    def get(self, name: str) -> Any:
        return self._content.get(name)

    def refuse(self, name: str, allowed: str) -> UnsupportedModel:
        """The error of a field that is not ``allowed``."""
        value = self.get(name)
        found = "but is missing" if value is None else f"not {json.dumps(value)[:80]}"
        return UnsupportedModel(f"{self._place}: {name} must be {allowed}, {found}")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise self.refuse(name, f"a whole number from 1 to {_MOST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = default if self.get(name) is None else self.get(name)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not fits or not 0 < value < math.inf:
            raise self.refuse(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def below(self, name: str) -> Fields:
        """The object under ``name``; absent is empty."""
        value = self.get(name)
        if not isinstance(value, dict | None):
            raise self.refuse(name, "an object")
        return Fields(f"{self._place}: {name}", value or {})

    def __bool__(self) -> bool:
        return bool(self._content)


def read_model_config(directory: Path) -> ModelConfig:
    """Read config.json and generation_config.json.

    Raises:
        UnsupportedModel: no such file, another architecture, a field that is missing or makes no
            sense, or an option we do not run.
    """
    fields = Fields("config.json", read_json_object(directory / "config.json"))
    family = _family(fields)
    _check_options(fields, family)
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    hidden = fields.count("hidden_size")
    # The older name goes first, as in the library.
    rope = fields.below("rope_scaling") or fields.below("rope_parameters")
    window = _window(fields, family)
    trained_context = fields.count("max_position_embeddings")
    vocab_rows = fields.count("vocab_size")
    return ModelConfig(
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        intermediate=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(fields, hidden, heads),
        vocab_rows=vocab_rows,
        context_length=min(trained_context, window or trained_context),
        sliding_window=window,
        rms_eps=fields.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(rope),
        tied=fields.flag("tie_word_embeddings"),
        qkv_bias=family.qkv_bias,
        head_norms=family.head_norms,
        eos_token_ids=_eos_ids(directory, fields, vocab_rows),
    )


def has_output_ids(directory: Path) -> bool:
    """True if the model in ``directory`` has a reduced output vocabulary."""
    return (directory / VOCABULARY_FILE).exists()


def has_blocks(directory: Path) -> bool:
    """True if the directory has its weights in blocks, too."""
    return (directory / BLOCK_FILE).exists()


def check_whole(directory: Path) -> None:
    """Raises UnsupportedModel if the model could write some of its tokens only."""
    if has_output_ids(directory):
        raise UnsupportedModel(
            f"{directory.name} has a {VOCABULARY_FILE}: it can be a draft but no target, "
            "for it would never write the tokens that are left out there"
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file.

    Raises:
        UnsupportedModel: it is missing, cannot be read, or is no JSON object; names the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{path.name} is missing from the model directory") from error
    except OSError as error:
        raise UnsupportedModel(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path.name} must hold a JSON object")
    return content


def _family(fields: Fields) -> Family:
    named = fields.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else named
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise fields.refuse("architectures", f"one of {', '.join(FAMILIES)}")
    if fields.get("model_type") != family.model_type:
        raise fields.refuse("model_type", f"{family.model_type}, as architectures says")
    return family


def _check_options(fields: Fields, family: Family) -> None:
    """Refuse what would change the function that is computed."""
    if fields.flag("attention_bias", family.qkv_bias) != family.qkv_bias:
        raise fields.refuse("attention_bias", f"{json.dumps(family.qkv_bias)} in this family")
    for option in ("mlp_bias", "use_sliding_window"):
        if fields.flag(option):
            raise fields.refuse(option, "false")
    kinds = [] if fields.get("layer_types") is None else fields.get("layer_types")
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise fields.refuse("layer_types", "full_attention in every layer")
    if fields.get("quantization_config"):
        raise fields.refuse("quantization_config", "absent: the weights must be plain")
    if fields.get("hidden_act") not in (None, "silu"):
        raise fields.refuse("hidden_act", "silu")
    if fields.get("partial_rotary_factor") not in (None, 1):
        raise fields.refuse("partial_rotary_factor", "1")


def _window(fields: Fields, family: Family) -> int | None:
    """Up to this many positions, a window hides nothing; None if there is no window."""
    if not family.windowed:
        return None
    if "sliding_window" not in fields:
        return family.window
    return None if fields.get("sliding_window") is None else fields.count("sliding_window")


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is None and hidden % heads:
        raise fields.refuse("hidden_size", f"a multiple of num_attention_heads ({heads})")
    head_dim = fields.count("head_dim", max(hidden // heads, 1))
    if head_dim % 2:
        name = "hidden_size" if fields.get("head_dim") is None else "head_dim"
        raise fields.refuse(name, f"such that heads have an even width: it is {head_dim}")
    return head_dim


def _rope_scaling(rope: Fields) -> RopeScaling | None:
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise rope.refuse("partial_rotary_factor", "1")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise rope.refuse("rope_type" if rope.get("rope_type") else "type", "default or llama3")
    low = rope.number("low_freq_factor")
    high = rope.number("high_freq_factor")
    if high <= low:
        raise rope.refuse("high_freq_factor", f"above low_freq_factor ({low:g})")
    return RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=rope.count("original_max_position_embeddings"),
    )


def _eos_ids(directory: Path, config: Fields, vocab_rows: int) -> tuple[int, ...]:
    """Ids that end a text; generation_config.json, which need not be there, goes first."""
    path, name = directory / "generation_config.json", "eos_token_id"
    chosen = config
    if path.exists():
        generation = Fields(path.name, read_json_object(path))
        if generation.get(name) is not None:
            chosen = generation
    value = chosen.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        whole = isinstance(token, int) and not isinstance(token, bool)
        if not whole or not 0 <= token < vocab_rows:
            raise chosen.refuse(name, f"one or more token ids below vocab_size ({vocab_rows})")
    return tuple(ids)
