"""When a target is held in blocks, and what is said where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.dtypes import INT8
from support.tiny_models import make_tiny_llama, make_tiny_model

from foredraft.config import EngineConfig, SettingError
from foredraft.engine.model_config import BLOCK_FILE
from foredraft.engine.native import choice
from foredraft.engine.native.choice import check_native, prefers_native
from foredraft.engine.runner import load_runner
from foredraft.params import InvalidField


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available", lambda: True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path, layers=1)


def test_auto_takes_the_blocks_that_are_there(
    directory: Path, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineConfig(directory, device="cpu")
    assert not prefers_native(settings)
    (directory / BLOCK_FILE).touch()
    assert prefers_native(settings)
    assert not prefers_native(EngineConfig(directory, dtype="float16", device="cpu"))
    monkeypatch.setattr(choice, "available", lambda: False)
    assert not prefers_native(settings)


def test_auto_leaves_shapes_that_kernels_do_not_take(tmp_path: Path, kernels: None) -> None:
    # All inputs are whole blocks, so a conversion writes them; heads are no whole vectors.
    directory = make_tiny_llama(tmp_path, layers=1, hidden=160, heads=8, kv_heads=8, head_dim=20)
    (directory / BLOCK_FILE).touch()
    settings = EngineConfig(directory, device="cpu", kv_memory_mib=1)
    assert not prefers_native(settings)
    assert load_runner(settings).info.dtype != "int8"


def test_auto_stays_on_a_gpu(
    directory: Path, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / BLOCK_FILE).touch()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not prefers_native(EngineConfig(directory))
    assert prefers_native(EngineConfig(directory, device="cpu"))


def test_int8_elsewhere_is_refused(
    directory: Path, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidField, match="--device must be auto or cpu with --dtype int8"):
        check_native(EngineConfig(directory, dtype="int8", device="cuda:0"))
    monkeypatch.setattr(choice, "available", lambda: False)
    with pytest.raises(SettingError, match=r"dtype int8 needs Linux on an x86-64 CPU with AVX2"):
        load_runner(EngineConfig(directory, dtype="int8"))


@pytest.mark.skipif(not choice.available(), reason="the kernels do not run here")
def test_both_lead_to_a_runner_of_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = "foredraft.engine.native.runner.NativeRunner.load"
    monkeypatch.setattr(load, lambda settings: settings)
    (directory / BLOCK_FILE).touch()
    for dtype in ("int8", "auto"):
        settings = EngineConfig(directory, dtype=dtype, device="cpu")
        assert load_runner(settings) is settings


@pytest.mark.parametrize("dtype", ["float32", INT8, "fp8"])
def test_a_window_is_told_in_every_precision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: str
) -> None:
    directory = make_tiny_model(tmp_path, "mistral", context=128, sliding_window=64)
    load_runner(EngineConfig(directory, dtype=dtype, device="cpu", threads=1, kv_memory_mib=1))
    assert "the context is served up to sliding_window: 64" in caplog.text
