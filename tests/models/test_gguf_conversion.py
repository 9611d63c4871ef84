"""A tiny Llama goes to GGUF the way other tools write it, and comes back unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from foredraft.engine.model_config import has_blocks, read_model_config
from foredraft.engine.native.weights import read_native
from foredraft.models.convert import convert_gguf
from foredraft.models.fetch import ModelError
from foredraft.models.gguf_blocks import GgufBlocks

KINDS = gguf.GGMLQuantizationType
Array = NDArray[np.float32]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The first letters of the byte-level alphabet: a space, a newline and a digit are among them.
LETTERS = ["Ġ", "Ċ", "a", "b", "c", "1", "2", "Ã", "©"]
MERGES = ["Ġ a", "a b", "1 2", "Ã ©"]
TOKENS = [*SPECIAL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=96,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=64,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=tied,
        )
    ).eval()


def gguf_weights(model: LlamaForCausalLM) -> Iterator[tuple[str, Array]]:
    """Names and row order of GGUF: rows that rotate together stand side by side."""
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for name, values in model.state_dict().items():
        array = values.numpy()
        if name in outer:
            if name != "lm_head.weight" or not model.config.tie_word_embeddings:
                yield outer[name], array
            continue
        _, _, layer, rest = name.split(".", 3)
        kind = LAYER_NAMES[rest.removesuffix(".weight")]
        heads = {"attn_q": 3, "attn_k": 1}.get(kind)
        if heads is not None:
            halves = array.reshape(heads, 2, 16, array.shape[1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        yield f"blk.{layer}.{kind}.weight", array


def write_gguf(
    path: Path,
    tensors: dict[str, Array],
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType | None = None,
    others: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """``kind``: of matrices, None: floats; ``others``: of those that have it in their names."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(96)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, values in tensors.items():
        named = [other for part, other in (others or {}).items() if part in name]
        chosen = named[0] if named else kind
        if chosen is not None and values.ndim == 2:
            writer.add_tensor(name, quants.quantize(values, chosen), raw_dtype=chosen)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(source: Path, destination: Path) -> Path:
    destination.mkdir()
    convert_gguf(source, destination)
    return destination


@pytest.mark.parametrize("tied", [True, False])
def test_the_converted_model_computes_the_same_logits(tmp_path: Path, tied: bool) -> None:
    model = tiny_llama(tied)
    source = write_gguf(tmp_path / "tiny.gguf", dict(gguf_weights(model)))
    directory = converted(source, tmp_path / "model")

    loaded = AutoModelForCausalLM.from_pretrained(directory)

    assert loaded.dtype == torch.float32
    assert loaded.config.tie_word_embeddings is tied
    ids = torch.arange(len(TOKENS)).reshape(1, -1)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_quantised_weights_become_their_exact_dequantised_values(tmp_path: Path) -> None:
    tensors = dict(gguf_weights(tiny_llama(tied=True)))
    kind = KINDS.Q4_1
    source = write_gguf(tmp_path / "tiny.gguf", tensors, kind=kind)
    directory = converted(source, tmp_path / "model")

    loaded = AutoModelForCausalLM.from_pretrained(directory)

    for name, values in gguf_weights(loaded):
        expected = tensors[name]
        if values.ndim == 2:
            expected = quants.dequantize(quants.quantize(expected, kind), kind)
        np.testing.assert_array_equal(values, expected, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "tied", "bits"),
    [("Q4_1", True, (8, 4)), ("Q4_0", False, (4, 4)), ("Q8_0", False, (8, 8))],
)
def test_blocks_are_the_same_numbers(tmp_path: Path, kind: str, tied: bool, bits: Any) -> None:
    """`read_native` compares each matrix with the float weights, which the test above looks at."""
    others = {"token_embd": KINDS.Q8_0} if kind == "Q4_1" else {}
    tensors = dict(gguf_weights(tiny_llama(tied)))
    source = write_gguf(tmp_path / "tiny.gguf", tensors, kind=KINDS[kind], others=others)
    directory = converted(source, tmp_path / "model")

    read = read_native(directory, read_model_config(directory), lambda blocks: blocks)

    layer = read.layers[1]
    matrices = (layer.qkv, layer.out, layer.gate_up, layer.down)
    assert (read.embedding.bits, layer.qkv.bits) == bits and (read.head is read.embedding) == tied
    assert [m.shape for m in matrices] == [(160, 96), (96, 96), (128, 96), (96, 64)]
    turned = [tensors[f"blk.1.attn_{part}.weight"] for part in "qkv"]  # as in GGUF, so in pairs
    wanted = np.concatenate([quants.quantize(part, KINDS[kind]) for part in turned])
    np.testing.assert_array_equal(
        layer.qkv.floats().numpy(), quants.dequantize(wanted, KINDS[kind])
    )


@pytest.mark.parametrize(
    "others", [{"ffn_down": KINDS.Q5_0}, {"1.attn_k": KINDS.Q8_0}], ids=["kind", "joined"]
)
def test_without_such_blocks_for_all_there_are_none(tmp_path: Path, others: Any) -> None:
    tensors = dict(gguf_weights(tiny_llama(tied=True)))
    source = write_gguf(tmp_path / "tiny.gguf", tensors, kind=KINDS.Q4_1, others=others)
    assert not has_blocks(converted(source, tmp_path / "model"))


def test_numbers_that_kernels_do_not_take_make_no_blocks() -> None:
    row = np.zeros((1, 34), np.uint8)
    assert GgufBlocks.of(KINDS.Q8_0, row) is not None
    row[0, 9] = 128
    assert GgufBlocks.of(KINDS.Q8_0, row) is None  # -128
    row[0, :2] = np.array([9000], np.float16).view(np.uint8)
    assert GgufBlocks.of(KINDS.Q4_1, row[:, :20]) is not None
    assert GgufBlocks.of(KINDS.Q4_0, row[:, :18]) is None  # -8 times that


def test_the_tokenizer_splits_digits_and_adds_nothing(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", dict(gguf_weights(tiny_llama(tied=True))))
    tokenizer = AutoTokenizer.from_pretrained(converted(source, tmp_path / "model"))

    assert tokenizer.tokenize("ab a12é<|im_end|>\n") == (
        ["ab", "Ġa", "1", "2", "Ã©", "<|im_end|>", "Ċ"]
    )
    assert tokenizer("a").input_ids == [TOKENS.index("a")]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (2, 2)
    chat = tokenizer.apply_chat_template([{"role": "a", "content": "b"}], tokenize=False)
    assert chat == "a: b"


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", {}, architecture="qwen2")
    with pytest.raises(ModelError, match="qwen2 model; allowed is llama"):
        convert_gguf(source, tmp_path)


def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q.bias": np.zeros(32, np.float32)}
    source = write_gguf(tmp_path / "tiny.gguf", tensors)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.bias"):
        convert_gguf(source, tmp_path)
