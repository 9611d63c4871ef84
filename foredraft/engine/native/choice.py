"""Whether a target runs by kernels over blocks."""

from __future__ import annotations

from foredraft.config import INT8, EngineConfig, SettingError
from foredraft.engine.device import choose_device
from foredraft.engine.model_config import UnsupportedModel, has_blocks, read_model_config
from foredraft.engine.native.weights import check_columns
from foredraft.params import InvalidField
from kernels.cpu import available


def prefers_native(settings: EngineConfig) -> bool:
    """Whether dtype auto is int8: on a CPU with the kernels, for weights that lie in blocks anyway.

    Then it is the very same model, in a third of float16's bytes. Other weights int8 would round as
    nobody has asked for.
    """
    return settings.dtype == "auto" and has_blocks(settings.model) and runs_native(settings)


def runs_native(settings: EngineConfig) -> bool:
    """Whether the kernels run on the device, and take a model of this shape."""
    if choose_device(settings.device).type != "cpu" or not available():
        return False
    try:
        check_columns(read_model_config(settings.model))
    except UnsupportedModel:  # what else there is to say of it another engine says
        return False
    return True


def check_native(settings: EngineConfig) -> None:
    """Raises what tells a user why dtype int8 cannot be had.

    Raises:
        InvalidField: the device is no CPU. "auto" is one here, whatever else there is.
        SettingError: the kernels do not run on this machine.
    """
    if settings.device not in ("auto", "cpu"):
        raise InvalidField("--device", f"auto or cpu with --dtype {INT8}")
    if not available():
        raise SettingError(
            f"dtype {INT8} needs Linux on an x86-64 CPU with AVX2, FMA and F16C, and llvmlite: "
            "pip install 'foredraft[worker]'"
        )
