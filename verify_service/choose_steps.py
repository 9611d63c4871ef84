"""Who runs the steps of a model: decided once, when the service starts."""

from __future__ import annotations

import logging

from foredraft.config import FP8
from foredraft.engine.runner import Runner
from foredraft.wire.messages import Limits
from verify_service.host_steps import HostSteps
from verify_service.reservations import Reservations
from verify_service.steps import Steps

log = logging.getLogger(__name__)


def choose_steps(runner: Runner, memory: Reservations, limits: Limits) -> Steps:
    """The device where the target is in FP8 on a GPU, else the host."""
    if runner.info.dtype == FP8:  # so there is a Triton
        from foredraft.engine.fp8.runner import Fp8Runner
        from verify_service.device_steps import DeviceSteps

        if isinstance(runner, Fp8Runner) and runner.on_gpu:
            return DeviceSteps(runner, memory, limits)
    log.info("steps are prepared and decided by the host")
    return HostSteps(runner, memory)
