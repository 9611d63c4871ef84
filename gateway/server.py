"""The gateway process: clients on one side, workers on the other, no model inside."""

from __future__ import annotations

import asyncio
import logging
import resource
from contextlib import AbstractAsyncContextManager, nullcontext

from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from foredraft.chat_template import ChatTemplate
from foredraft.config import GatewayConfig
from foredraft.v1 import generate_pb2_grpc as pb_grpc
from foredraft.wire.channel import MAX_CONNECTIONS, bind, public_server
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.serving import GRACE_SECONDS, serve_until_stopped
from gateway.access import make_access
from gateway.generate_service import SERVICE, GenerateService
from gateway.http.app import make_app
from gateway.http.door import HttpDoor
from gateway.http.guard import key_guard
from gateway.intake import Intake
from gateway.metrics import Metrics
from gateway.plan import Planner
from gateway.relay import Relay
from gateway.relay_meter import RelayMeter
from gateway.stall import Patience
from gateway.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# What tools that know no protos find out: what can be called here, and with what.
_REFLECTED = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
_MOST_FILES = 4 * MAX_CONNECTIONS  # those of both doors, and all else
_LAST_WORDS_SECONDS = 1.0  # for answers that are cut short to say so


class Gateway:
    """All parts of the process, wired.

    It listens at ``address`` once ``server`` is started, and at ``http.address`` while it works.
    """

    def __init__(self, config: GatewayConfig) -> None:
        tokenizer = Tokenizer(config.model)
        planner = Planner(tokenizer, ChatTemplate(config.model), config.speculation)
        self._serving: asyncio.Queue[bool] = asyncio.Queue()
        metrics = Metrics()
        self.relay = Relay(config, tokenizer, RelayMeter(metrics), self._serving.put_nowait)
        self.health = Health(SERVICE)
        self.server = public_server([ErrorInterceptor()])
        self.intake = intake = Intake(self.relay, planner, metrics)
        access = make_access(config)
        self._patience = Patience()
        self._service = GenerateService(intake, access, self._patience)
        pb_grpc.add_GenerateServiceServicer_to_server(self._service, self.server)
        reflection.enable_server_reflection(_REFLECTED, self.server)
        self.address = bind(self.server, config.grpc_listen)
        self.http: HttpDoor | None = None
        if config.http_listen is not None:
            app = make_app(intake, planner, tokenizer, metrics, [key_guard(access)])
            self.http = HttpDoor(config.http_listen, app)

    async def work(self) -> None:
        """Keep the streams to the workers up, and health true to them, until cancelled.

        The HTTP door is open meanwhile; the streams outlive it.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.relay.run())
            async with self._http_serving():
                while True:
                    await self.health.set_serving(await self._serving.get())

    async def drain(self) -> None:
        """Take no more requests; those that run are ended just before the grace time is over.

        Not those that nobody reads: they would last for all of it, whatever they are told.
        """
        self._patience.run_out()
        if self.http is not None:
            self.http.close()
        seconds = GRACE_SECONDS - _LAST_WORDS_SECONDS
        asyncio.get_running_loop().call_later(seconds, self.relay.shut_down)

    async def idle(self) -> None:
        """Return when no call of the gRPC door is open that somebody reads."""
        await self._service.idle()

    def _http_serving(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self.http is None else self.http.serving()


def allow_files(count: int) -> None:
    """Let this process open so many, if its hard limit allows it; many systems begin with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def serve(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT; healthy while the verify worker is connected."""
    allow_files(_MOST_FILES)
    gateway = Gateway(config)
    logger.info("listening on %s", gateway.address)
    if gateway.http is not None:
        logger.info("listening on %s for HTTP", gateway.http.address)
    await serve_until_stopped(
        gateway.server, gateway.health, gateway.work(), drain=gateway.drain, idle=gateway.idle
    )
