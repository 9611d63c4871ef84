"""Which device a name stands for."""

from __future__ import annotations

import pytest
import torch

from foredraft.engine.device import choose_device
from foredraft.params import InvalidField


@pytest.mark.parametrize(("name", "gpus"), [("cuda:0", 0), ("cuda", 0), ("cuda:2", 2), ("tpu", 2)])
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(InvalidField, match=f"^--device must be auto, cpu or one of the {gpus} "):
        choose_device(name)


@pytest.mark.parametrize(("gpus", "auto"), [(0, "cpu"), (2, "cuda")])
def test_devices_that_are_there(monkeypatch: pytest.MonkeyPatch, gpus: int, auto: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_device("auto") == torch.device(auto)
    assert choose_device("cpu") == torch.device("cpu")
    if gpus:
        assert choose_device("cuda:1") == torch.device("cuda", 1)
