"""From a draft's directory to one small file: `draft_pack` says what is in it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.engine.model_config import UnsupportedModel, read_json_object, read_model_config
from foredraft.engine.output_ids import read_output_ids
from foredraft.engine.weights import WeightFiles, expected_shapes
from foredraft.models.draft_pack import DraftPack
from foredraft.models.fetch import ModelError
from foredraft.models.int8_rows import Int8Rows
from foredraft.models.target_tensors import EMBEDDING, HEAD, digest, read_target_tensor
from foredraft.tokenizer_hash import tokenizer_identity

_CARD = "README.md"
# Nobody measures here: the answers and the target's time that it takes are those of the training.
_ROUNDED = """
## Packed

The weights of linear layers were rounded to 8 bits, with one scale per row. What this card tells
was measured before that.
"""


def pack_draft(directory: Path, target: Path) -> DraftPack:
    """Pack the draft in ``directory``, whose embedding and head are those of ``target``.

    Raises:
        ModelError: it is no model that the engine runs, or shares not enough with the target.
    """
    try:
        return _pack(directory, target)
    except UnsupportedModel as error:
        raise ModelError(f"draft {directory.name} cannot be packed: {error}") from error


def _pack(directory: Path, target: Path) -> DraftPack:
    config = read_model_config(directory)
    if tokenizer_identity(directory).hash != tokenizer_identity(target).hash:
        raise UnsupportedModel(f"its tokenizer is not that of target {target.name}")
    rows = config.vocab_rows
    output = read_output_ids(directory, rows, rows, torch.device("cpu"))
    left_out, matrices, vectors = {}, {}, {}
    with ExitStack() as stack:
        read = WeightFiles(directory, stack)
        read.check(config)
        for name, shape in expected_shapes(config):
            tensor = read(name)
            if name in (EMBEDDING, HEAD):
                left_out[name] = _shared(tensor, target, name)
            elif len(shape) == 2:
                matrices[name] = Int8Rows.of(_finite(tensor, name))
            else:
                vectors[name] = _finite(tensor, name)
    return DraftPack(
        target=target.name,
        left_out=left_out,
        config=read_json_object(directory / "config.json"),
        card=_card(directory / _CARD),
        matrices=matrices,
        vectors=vectors,
        ids=None if output is None else output.ids.to(torch.int32).numpy(),
    )


def _card(file: Path) -> str:
    """The draft's own, with what packing makes of it; empty without one."""
    if not file.exists():
        return ""
    card = file.read_text(encoding="utf-8")
    return card if _ROUNDED in card else card.rstrip("\n") + "\n" + _ROUNDED


def _shared(tensor: Tensor, target: Path, name: str) -> str:
    """Digest of the target's tensor, which the draft's must equal in the draft's own type."""
    theirs = read_target_tensor(target, name)
    if not torch.equal(torch.from_numpy(theirs).to(tensor.dtype), tensor):
        raise UnsupportedModel(f"weight {name} must be that of target {target.name}")
    return digest(theirs)


def _finite(tensor: Tensor, name: str) -> NDArray[np.float32]:
    values: NDArray[np.float32] = tensor.float().numpy()
    if not np.isfinite(values).all():
        raise UnsupportedModel(f"weight {name} has values that are not finite")
    return values
