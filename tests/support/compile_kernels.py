"""Compiles every kernel for a GPU that is not there: ``python compile_kernels.py CAPABILITY``.

Launchers are called with tensors on the CPU, as small as the kernels' specialisations allow; Triton
compiles what they would launch and launches nothing. Prints, per kernel, what the machine code
needs, as JSON. Runs in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from attention_launches import attention_launches
from draft_launches import draft_launches
from step_launches import launch_step
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import kernels.early_start
import kernels.skinny_gemm
from kernels.bf16_gemm_skinny import bf16_gemm_skinny
from kernels.embed_rows import embed_rows
from kernels.fp8_gemm_skinny import fp8_gemm_skinny
from kernels.fp8_gemm_tall import fp8_gemm_tall
from kernels.lm_head import lm_head
from kernels.quantize_rows import quantize_rows
from kernels.quantize_weight import quantize_weight
from kernels.rmsnorm_residual_quant import rmsnorm_residual, rmsnorm_residual_quant
from kernels.silu_mul_quant import silu_mul_quant
from kernels.skinny_arguments import Extras
from kernels.skinny_table import Launch, Tiling
from kernels.w8a16_gemm_skinny import w8a16_gemm_skinny

_K = 512


@dataclass(frozen=True, slots=True)
class Target:
    """What Triton asks a driver when it only compiles."""

    capability: int

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def _bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def _codes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float8_e4m3fn)


def launches() -> Iterator[tuple[str, Callable[[], object]]]:
    """Every kernel, in every form that the engine launches."""
    # Triton takes an argument of 1 for a constant: that is another kernel.
    for sizes in ((1, 1, 1), (1, 1, 300), (2, 16, 128_256)):
        yield f"step {sizes}", partial(launch_step, *sizes)
    yield "quantize_weight", partial(quantize_weight, _bf16(16, _K))
    for width in (4096, 8192):
        x, gamma = _bf16(2, width), torch.zeros(width)
        token = torch.zeros(2, dtype=torch.int32)
        yield f"embed_rows {width}", partial(embed_rows, x, token)
        yield f"rmsnorm {width}", partial(rmsnorm_residual, x, gamma, 1e-5, residual=x)
        norm = partial(rmsnorm_residual_quant, x, gamma, 1e-5, residual=x)
        yield f"rmsnorm, quantised {width}", norm
        yield f"quantize_rows {width}", partial(quantize_rows, x)
    for width in (14336, 28672):
        yield f"silu_mul {width}", partial(silu_mul_quant, _bf16(2, 2 * width))
    n = torch.zeros(256)
    weight, codes = _bf16(256, _K), _codes(256, _K)
    for rows in (16, 32, 64, 80, 128):
        x, x_codes, residual = _bf16(rows, _K), _codes(rows, _K), _bf16(rows, 256)
        fp8 = partial(fp8_gemm_skinny, x_codes, n[:rows], codes, n, residual=residual)
        yield f"fp8 {rows}", fp8
        yield f"w8a16 {rows}", partial(w8a16_gemm_skinny, x, codes, n, residual=residual)
        yield f"bf16 {rows}", partial(bf16_gemm_skinny, x, weight, residual=residual)
        yield f"lm_head {rows}", partial(lm_head, x, weight)
        if rows <= 80:  # wider and as high does not fit the registers
            high = Launch(block_n=256, warps=8, stages=3)
            deep = Tiling(block_k=256, splits=1, few=high, many=high)
            yield f"fp8 deep {rows}", partial(fp8, tiling=deep)
    has_descriptors = kernels.early_start.capability(n.device) >= (9, 0)
    for rows in (16, 256, 512) if has_descriptors else ():  # tiles of each width
        extras = Extras(n, torch.zeros(rows), None, _bf16(rows, 256))
        yield f"fp8 tall {rows}", partial(fp8_gemm_tall, _codes(rows, _K), codes, extras)
    gate_up = _bf16(16, 2 * _K)
    yield "fp8 silu_mul", partial(fp8_gemm_skinny, gate_up, None, codes, n, silu_mul=True)
    yield "w8a16 silu_mul", partial(w8a16_gemm_skinny, gate_up, codes, n, silu_mul=True)
    yield from attention_launches()
    yield from draft_launches()


def compile_all(capability: int) -> dict[str, dict[str, Any]]:
    driver.set_active(Target(capability))
    for module in (kernels.early_start, kernels.skinny_gemm):
        module.capability = lambda device: divmod(capability, 10)  # type: ignore[attr-defined]
    compiled = []
    compile_or_run = JITFunction.run

    def only_compile(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled.append(compile_or_run(self, *args, grid=grid, warmup=True, **kwargs))

    JITFunction.run = only_compile
    needs = {}
    for name, launch in launches():
        launch()
        for kernel in compiled:
            needs[f"{name}: {kernel.metadata.name}"] = _needs(kernel)
        compiled.clear()
    return needs


def _needs(kernel: Any) -> dict[str, Any]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.check_output([tool, "-res-usage", file.name], text=True)
    usage = SimpleNamespace(**{k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)})
    return {
        "registers": usage.REG,
        "spilled": usage.STACK + usage.LOCAL,
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "tensor cores": sorted(set(re.findall(r"wgmma\.mma_async|mma\.sync", kernel.asm["ptx"]))),
    }


if __name__ == "__main__":
    json.dump(compile_all(int(sys.argv[1])), sys.stdout, indent=1)
