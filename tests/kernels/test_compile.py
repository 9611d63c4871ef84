"""All kernels, compiled for GPUs that need not be there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SUPPORT = Path(__file__).parents[1] / "support"


def run_alone(script: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """What a script prints in a process that does not interpret kernels."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | variables
    command = [sys.executable, str(_SUPPORT / script), *arguments]
    printed: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment))
    return printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "memory", "tensor_cores"),
    [(89, 99 << 10, "mma.sync"), (90, 227 << 10, "wgmma.mma_async")],
    ids=["sm_89", "sm_90"],
)
def test_kernels_fit_the_processor(capability: int, memory: int, tensor_cores: str):
    needs = run_alone("compile_kernels.py", str(capability))
    assert len(needs) >= 20
    launched = {name.rpartition(": ")[2] for name in needs}
    assert {"_rank", "_pick", "_best_of_part", "_sample_threshold", "_tree_reroot"} <= launched
    for name, need in needs.items():
        # Attention keeps in memory what only its outer loop needs, and little else.
        spills = 320 if name.endswith(": tree_attention_kernel") else 0
        if name == "lm_head 128: skinny":  # float32 logits of 128 rows at once
            spills = 8
        assert need["spilled"] <= spills, name
        assert need["shared"] <= memory, name
        assert need["registers"] * need["warps"] * 32 <= 65536, name
        products = ("fp8", "w8a16", "bf16", "lm_head")
        if name.startswith(products) or re.search("(tree|prompt)_attention", name):
            assert need["tensor cores"] == [tensor_cores], name
        else:
            few = "narrow" in name or "slot_attention" in name
            assert need["tensor cores"] == (["mma.sync"] if few else []), name


@pytest.mark.slow
def test_what_steps_launch_is_compiled_ahead(tmp_path: Path) -> None:
    """With a cache of its own: what was compiled before would not be counted."""
    compiled = run_alone("compile_steps.py", TRITON_CACHE_DIR=str(tmp_path))
    assert compiled["ahead"] >= 15
    assert compiled["later"] == 0
