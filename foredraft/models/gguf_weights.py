"""Llama weights of a GGUF file as a Hugging Face configuration and state.

The dequantised values are written in float32: they are products of 16-bit scales and do not fit
float16 without rounding, and "the model" means exactly these values.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from foredraft.models.fetch import ModelError
from foredraft.models.gguf_reader import GgufFile

Number = TypeVar("Number", bound=np.generic)

_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def llama_config(file: GgufFile) -> dict[str, Any]:
    """The content of config.json."""
    if file.architecture != "llama":
        raise ModelError(f"{file.path.name} holds a {file.architecture} model; allowed is llama")
    if file.get("llama.rope.scaling.type") not in (None, "none"):
        raise ModelError(f"{file.path.name} scales its rotary embedding, which is not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(file["tokenizer.ggml.tokens"]),
        "hidden_size": file.hyperparameter("embedding_length"),
        "intermediate_size": file.hyperparameter("feed_forward_length"),
        "num_hidden_layers": file.hyperparameter("block_count"),
        "num_attention_heads": file.hyperparameter("attention.head_count"),
        "num_key_value_heads": file.hyperparameter("attention.head_count_kv"),
        "head_dim": file.hyperparameter("rope.dimension_count"),
        "max_position_embeddings": file.hyperparameter("context_length"),
        "rms_norm_eps": _shortest(file.hyperparameter("attention.layer_norm_rms_epsilon")),
        "rope_theta": file.hyperparameter("rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.tensor_names(),
        "bos_token_id": file["tokenizer.ggml.bos_token_id"],
        "eos_token_id": file["tokenizer.ggml.eos_token_id"],
        "pad_token_id": file["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def llama_weights(file: GgufFile) -> dict[str, NDArray[np.float32]]:
    """The content of model.safetensors, with a progress bar on stderr."""
    weights = {}
    tensors = tqdm(file.tensors(), "Converting", total=len(file.tensor_names()), unit="tensor")
    for gguf_name, values in tensors:
        name = state_name(gguf_name)
        weights[name] = in_state_order(file, name, values)
    return weights


def state_name(gguf_name: str) -> str:
    """What Hugging Face calls a tensor. Raises ModelError: no Llama model has it."""
    if gguf_name in _OUTER_NAMES:
        return _OUTER_NAMES[gguf_name]
    block = _BLOCK.fullmatch(gguf_name)
    if block is None or block[2] not in _LAYER_NAMES:
        raise ModelError(f"tensor {gguf_name} is not part of a Llama model")
    return f"model.layers.{block[1]}.{_LAYER_NAMES[block[2]]}.weight"


def in_state_order(file: GgufFile, name: str, values: NDArray[Number]) -> NDArray[Number]:
    """``values``, a row for each of the tensor of this Hugging Face name, in the order of that."""
    if name.endswith("q_proj.weight"):
        return _split_rotary_pairs(values, file.hyperparameter("attention.head_count"))
    if name.endswith("k_proj.weight"):
        return _split_rotary_pairs(values, file.hyperparameter("attention.head_count_kv"))
    return values


def _split_rotary_pairs(values: NDArray[Number], heads: int) -> NDArray[Number]:
    """GGUF keeps the two rows that rotate together side by side, Hugging Face half a head apart."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _shortest(value: float) -> float:
    """The short decimal that a float32 was written from: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))
