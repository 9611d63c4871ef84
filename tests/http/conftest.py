"""A tokenizer whose tokens are bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.http_door import Words
from support.tiny_models import make_tiny_tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("models") / "tiny", 259)


@pytest.fixture(scope="session")
def words(model: Path) -> Words:
    return Words(model)
