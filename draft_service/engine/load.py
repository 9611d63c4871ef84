"""The engine of a draft that settings ask for."""

from __future__ import annotations

from draft_service.engine.draft_engine import DraftEngine
from draft_service.engine.lean import LeanEngine
from draft_service.engine.stand_in import RunnerEngine
from foredraft.config import EngineConfig
from foredraft.engine.runner import load_runner
from foredraft.wire.messages import ModelInfo


def load_engine(settings: EngineConfig, target: ModelInfo) -> DraftEngine:
    """A draft for ``target``: the model of ``settings``, or the stand-in that they ask for.

    Raises:
        UnsupportedModel: the directory holds no model that can be run.
    """
    if settings.fake is None:
        return LeanEngine.load(settings, target)
    return RunnerEngine(load_runner(settings), target)
