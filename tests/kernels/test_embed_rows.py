from __future__ import annotations

import pytest
import torch

from kernels.embed_rows import embed_rows


@pytest.mark.parametrize("width", [64, 144])
def test_rows_are_the_tokens(device: torch.device, width: int) -> None:
    embedding = torch.randn(7, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    token = torch.tensor([6, 0, 3, 3], dtype=torch.int32)
    found = embed_rows(embedding.to(device), token.to(device))
    assert torch.equal(found.cpu(), embedding[token])
    assert embed_rows(embedding.to(device), token[:0].to(device)).shape == (0, width)


def test_tokens_of_another_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="token must be"):
        embed_rows(torch.zeros(2, 16, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int64))
