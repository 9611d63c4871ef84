"""The families of models that the engine runs: what each adds to Llama's architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of config.json.

    qkv_bias: the projections to queries, keys and values have biases.
    head_norms: every query and key head is normed before it is turned.
    windowed: a row sees only the newest ``sliding_window`` positions, if config.json has a number
        there; ``window`` is the number where the field is absent.
    """

    model_type: str
    qkv_bias: bool = False
    head_norms: bool = False
    windowed: bool = False
    window: int | None = None


FAMILIES = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("mistral", windowed=True, window=4096),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True),
    "Qwen3ForCausalLM": Family("qwen3", head_norms=True),
}
