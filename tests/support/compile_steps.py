"""Compiles what steps on the device launch, for a GPU that is not there, and then looks again.

Prints how many kernels are compiled ahead, and how many more their launches would have needed. Runs
in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from compile_kernels import Target
from triton.compiler.compiler import ASTSource
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import foredraft.engine.fp8.kernel_operations
import kernels.early_start
import kernels.skinny_gemm
from bench.step.random_weights import RandomWeights, random_config
from foredraft.engine.fp8.device_step import DeviceStep, StepLimits
from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.kv import CodedKV
from foredraft.engine.fp8.model import Model
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.step_buckets import StepBuckets
from foredraft.engine.fp8.weights import quantise
from foredraft.models.widen.shape import Shape

_SHAPE = Shape(layers=2, hidden=256, intermediate=512, heads=4, kv_heads=2, head_dim=64)
_CPU = torch.device("cpu")


def main() -> None:
    driver.set_active(Target(90))
    modules = (kernels.early_start, kernels.skinny_gemm)
    for module in (*modules, foredraft.engine.fp8.kernel_operations):
        module.capability = lambda device: (9, 0)  # type: ignore[attr-defined]
    sources = []
    made = ASTSource.make_ir

    def noted(self: ASTSource, *args: Any, **kwargs: Any) -> Any:
        sources.append(self.name)
        return made(self, *args, **kwargs)

    ASTSource.make_ir = noted
    config = random_config(_SHAPE, 256)
    read = RandomWeights(config, _CPU)
    weights = quantise(read, config, config.vocab_rows, _CPU, ReferenceOperations())
    model = Model(weights, CodedKV(config, 1, _CPU).memory, KernelOperations())
    step = DeviceStep(model, StepLimits(2, 256, nodes=4, depth=4), config.vocab_rows)
    buckets = list(StepBuckets(2, 4))
    step.compile(buckets)
    ahead = len(sources)
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compile_only
    for bucket in buckets:
        step._run(model, bucket, step._memory_for(bucket))
    json.dump({"ahead": ahead, "later": len(sources) - ahead}, sys.stdout)


if __name__ == "__main__":
    main()
