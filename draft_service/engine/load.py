"""The engine of a draft that settings ask for."""

from __future__ import annotations

from draft_service.engine.draft_engine import DraftEngine, ModelEngine
from draft_service.engine.lean import LeanEngine
from draft_service.engine.stand_in import RunnerEngine
from foredraft.config import EngineConfig
from foredraft.engine.native.choice import runs_native
from foredraft.engine.runner import load_runner
from foredraft.wire.messages import ModelInfo


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
    if settings.dtype != "auto" or not runs_native(settings):
        return LeanEngine.load(settings, target)
    from draft_service.engine.native import NativeEngine  # where its kernels can be made

    return NativeEngine.load(settings, target)
