"""Turn a GGUF file into a Hugging Face model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foredraft.engine.model_config import BLOCK_FILE
from foredraft.models.gguf_blocks import llama_blocks
from foredraft.models.gguf_reader import GgufFile
from foredraft.models.gguf_tokenizer import build_tokenizer, tokenizer_config
from foredraft.models.gguf_weights import llama_config, llama_weights
from foredraft.models.tensor_file import write_tensors


def convert_gguf(source: Path, destination: Path) -> None:
    """Write the model in ``source`` to the existing directory ``destination``.

    Its weights in blocks, too, if all matrices of the file are of kinds that kernels take.
    """
    file = GgufFile(source)
    config = llama_config(file)
    _write_json(destination / "config.json", config)
    _write_json(destination / "generation_config.json", _generation_config(config))
    _write_json(destination / "tokenizer_config.json", tokenizer_config(file))
    build_tokenizer(file).save(str(destination / "tokenizer.json"))
    write_tensors(llama_weights(file), destination / "model.safetensors")
    blocks = llama_blocks(file)
    if blocks is not None:
        write_tensors(blocks, destination / BLOCK_FILE)


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {"_from_model_config": True} | {name: config[name] for name in ids}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
