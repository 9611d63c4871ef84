"""The same pass with weights and activations in bfloat16: what FP8 is held against.

Everything else is as it is in FP8, KV and attention included, so that the ratio of two steps is
what the precision of the linear layers brings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.operations import Matrix, Tokens
from kernels.bf16_gemm_skinny import bf16_gemm_skinny
from kernels.skinny_table import BF16


class Bf16Operations(KernelOperations):
    """As `Operations` says, but codes are the bfloat16 values themselves, and scales unused."""

    name = "Triton kernels, bfloat16 weights"

    def quantize_weight(self, weight: Tensor) -> Matrix:
        return Matrix(weight.bfloat16(), weight.new_ones(len(weight), dtype=torch.float32))

    def norm_quantize(self, x: Tensor, gamma: Tensor, eps: float) -> Tokens:
        return self.quantize(self.norm(x, gamma, eps))

    def quantize(self, x: Tensor) -> Tokens:
        return Tokens(x, x.new_empty(0))

    def silu_mul_quantize(self, gate_up: Tensor) -> Tokens:
        """Left to the product, which knows such tokens by their width."""
        return self.quantize(gate_up)

    def product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        return bf16_gemm_skinny(
            x.codes,
            weight.codes,
            bias=bias,
            residual=residual,
            silu_mul=x.codes.shape[1] != weight.codes.shape[1],
            workspace=self.workspace(BF16, weight.codes, len(x.codes)),
        )
