"""What computes: the CPU, or one of the GPUs that are there."""

from __future__ import annotations

import re

import torch

from foredraft.params import InvalidField

_DEVICE = re.compile(r"cpu|cuda(:(?P<number>\d+))?")


def choose_device(name: str) -> torch.device:
    """Resolve a device; "auto" is a GPU where there is one.

    Raises:
        InvalidField: there is no such device.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if count else "cpu"
    found = _DEVICE.fullmatch(name)
    if found is None or (name != "cpu" and int(found["number"] or 0) >= count):
        raise InvalidField("--device", f"auto, cpu or one of the {count} GPUs that are there")
    return torch.device(name)
