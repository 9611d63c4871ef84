"""The gateway process: clients on one side, workers on the other, no model inside."""

from __future__ import annotations

import asyncio
import logging

from foredraft.config import GatewayConfig
from foredraft.v1 import generate_pb2_grpc as pb_grpc
from foredraft.wire.channel import bind, public_server
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.serving import serve_until_stopped
from gateway.chat_template import ChatTemplate
from gateway.generate_service import SERVICE, GenerateService
from gateway.plan import Planner
from gateway.relay import Relay
from gateway.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Gateway:
    """All parts of the process, wired; it listens at ``address`` once ``server`` is started."""

    def __init__(self, config: GatewayConfig) -> None:
        tokenizer = Tokenizer(config.model)
        planner = Planner(tokenizer, ChatTemplate(config.model), config.speculation)
        self._serving: asyncio.Queue[bool] = asyncio.Queue()
        self.relay = Relay(config, tokenizer, self._serving.put_nowait)
        self.health = Health(SERVICE)
        self.server = public_server([ErrorInterceptor()])
        service = GenerateService(self.relay, planner)
        pb_grpc.add_GenerateServiceServicer_to_server(service, self.server)
        self.address = bind(self.server, config.grpc_listen)

    async def work(self) -> None:
        """Keep the streams to the workers up, and health true to them, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.relay.run())
            while True:
                await self.health.set_serving(await self._serving.get())


async def serve(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT; healthy while the verify worker is connected."""
    gateway = Gateway(config)
    logger.info("listening on %s", gateway.address)
    await serve_until_stopped(gateway.server, gateway.health, gateway.work())
