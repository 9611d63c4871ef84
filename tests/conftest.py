"""Fixtures that tests of several packages share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.models.resolve import resolve_model

# How long an example takes says more about what else the machine does.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The directory of the default model; fetched if this machine has never used it."""
    return resolve_model(DEFAULT_MODEL)
