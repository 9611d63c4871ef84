"""The files with cases, in the order in which they are measured."""

from __future__ import annotations

import importlib

from bench.kernels.case import Case

# One name per line: the modules of bench/kernels/cases.
CASE_FILES: tuple[str, ...] = (
    "draft_kernels",
    "fp8_gemm",
    "kv_kernels",
    "lm_head",
    "prompt_attention",
    "rolling_trees",
    "row_kernels",
    "sampling",
    "skinny_gemm",
    "tree_attention",
)


def all_cases() -> list[Case]:
    """Every case of every file."""
    modules = [importlib.import_module(f"bench.kernels.cases.{name}") for name in CASE_FILES]
    return [case for module in modules for case in module.cases()]
