"""A pass in FP8 by the kernels. Nothing here waits for the device: all of it can be captured."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.fp8.inputs import Bounds, Inputs
from foredraft.engine.fp8.operations import Matrix, Tokens
from kernels.attention_tiles import choose_splits
from kernels.embed_rows import embed_rows
from kernels.fp8_gemm import fp8_gemm
from kernels.fp8_gemm_skinny import fp8_gemm_skinny
from kernels.kv_layout import KVLayer
from kernels.lm_head import lm_head
from kernels.prompt_attention import prompt_attention
from kernels.quantize_rows import quantize_rows
from kernels.quantize_weight import quantize_weight
from kernels.rmsnorm_residual_quant import rmsnorm_residual, rmsnorm_residual_quant
from kernels.rope_kv_write import HeadNorms, rope_kv_write
from kernels.silu_mul_quant import silu_mul_quant
from kernels.skinny_arguments import Workspace
from kernels.skinny_gemm import workspace_for
from kernels.skinny_table import BF16, FP8
from kernels.tree_attention import tree_attention
from kernels.tree_attention_combine import Partials
from kernels.widen_kv import room_for


class KernelOperations:
    """As `Operations` says.

    Workspaces are kept by their sizes. Products of one shape share one: each kernel of a pass
    begins with the end of the one before it, so no two of them are in it at a time.
    """

    name = "Triton kernels"

    def __init__(self) -> None:
        self._workspaces: dict[tuple[str, torch.Size, int], Workspace] = {}
        self._partials: dict[torch.Size, Partials] = {}
        self._widened: dict[int, Tensor] = {}  # keys and values of a layer, by blocks of the table

    def quantize_weight(self, weight: Tensor) -> Matrix:
        return Matrix(*quantize_weight(weight))

    def embed(self, embedding: Tensor, token: Tensor) -> Tensor:
        return embed_rows(embedding, token)

    def norm_quantize(self, x: Tensor, gamma: Tensor, eps: float) -> Tokens:
        codes, scales, _ = rmsnorm_residual_quant(x, gamma, eps)
        return Tokens(codes, scales)

    def norm(self, x: Tensor, gamma: Tensor, eps: float) -> Tensor:
        return rmsnorm_residual(x, gamma, eps)[0]

    def quantize(self, x: Tensor) -> Tokens:
        return Tokens(*quantize_rows(x))

    def silu_mul_quantize(self, gate_up: Tensor) -> Tokens:
        return Tokens(*silu_mul_quant(gate_up))

    def product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        return fp8_gemm_skinny(
            x.codes,
            x.scales,
            weight.codes,
            weight.scales,
            bias=bias,
            residual=residual,
            workspace=self.workspace(FP8, weight.codes, len(x.codes)),
        )

    def chunk_product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        return fp8_gemm(
            x.codes, x.scales, weight.codes, weight.scales, bias=bias, residual=residual
        )

    def write(
        self,
        qkv: Tensor,
        turns: Tensor,
        inputs: Inputs,
        layer: KVLayer,
        head_norms: HeadNorms | None,
    ) -> Tensor:
        kv_heads, head_dim = layer.codes.shape[1], layer.codes.shape[4]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        q = qkv.new_empty((len(qkv), heads, head_dim))
        rope_kv_write(qkv, turns, inputs.rows.position, inputs.place, layer, q, head_norms)
        return q

    def attend(self, q: Tensor, layer: KVLayer, inputs: Inputs, bounds: Bounds) -> Tensor:
        partials = self._partials.get(q.shape)
        if partials is None:
            splits = choose_splits(layer.codes.shape[1])
            rows, heads, head_dim = q.shape
            partials = Partials.empty(splits, rows, heads, head_dim, q.device)
            self._partials[q.shape] = partials
        out = torch.empty_like(q)
        tree_attention(
            q,
            layer,
            inputs.tables,
            inputs.rows,
            inputs.path,
            partials,
            out,
            bounds.most_rows,
            bounds.most_context,
        )
        return out.flatten(1)

    def chunk_attend(self, q: Tensor, layer: KVLayer, inputs: Inputs) -> Tensor:
        blocks, out = inputs.tables.shape[1], torch.empty_like(q)
        widened = self._widened.get(blocks)
        if widened is None:
            widened = self._widened[blocks] = room_for(layer, blocks)
        prompt_attention(q, layer, inputs.tables, inputs.rows, widened, out)
        return out.flatten(1)

    def logits(self, x: Tensor, head: Tensor) -> Tensor:
        return lm_head(x, head, workspace=self.workspace(BF16, head, len(x)))

    def workspace(self, operands: str, weight: Tensor, rows: int) -> Workspace:
        """The room of products of so many rows with weights of this shape."""
        key = operands, weight.shape, rows
        found = self._workspaces.get(key)
        if found is None:
            found = self._workspaces[key] = workspace_for(operands, weight, rows)
        return found
