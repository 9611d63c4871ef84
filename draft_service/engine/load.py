"""The engine of a draft that settings ask for."""

from __future__ import annotations

from draft_service.engine.draft_engine import DraftEngine, ModelEngine
from draft_service.engine.lean import LeanEngine
from draft_service.engine.stand_in import RunnerEngine
from foredraft.config import EngineConfig
from foredraft.engine.device import choose_device
from foredraft.engine.model_config import UnsupportedModel, read_model_config
from foredraft.engine.native.weights import check_columns
from foredraft.engine.runner import load_runner
from foredraft.wire.messages import ModelInfo
from kernels.cpu import available


def load_engine(settings: EngineConfig, target: ModelInfo) -> DraftEngine:
    """A draft for ``target``: the model of ``settings``, or the stand-in that they ask for.

    Raises:
        UnsupportedModel: the directory holds no model that can be run.
    """
    if settings.fake is None:
        return load_model_engine(settings, target)
    return RunnerEngine(load_runner(settings), target)


def load_model_engine(settings: EngineConfig, target: ModelInfo) -> ModelEngine:
    """The model of ``settings``: with dtype auto on a CPU in int8, where the kernels for it run.

    Raises:
        UnsupportedModel: the directory holds no model that can be run.
    """
    if not _prefers_native(settings):
        return LeanEngine.load(settings, target)
    from draft_service.engine.native import NativeEngine  # where its kernels can be made

    return NativeEngine.load(settings, target)


def _prefers_native(settings: EngineConfig) -> bool:
    if settings.dtype != "auto" or choose_device(settings.device).type != "cpu" or not available():
        return False
    try:
        check_columns(read_model_config(settings.model))
    except UnsupportedModel:  # what else there is to say of it the other engine says
        return False
    return True
