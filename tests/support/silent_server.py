"""A verify server in a process of its own that answers once and is then silent.

Prints its address. Run as a script: a test stops the process to see whether that is noticed.
"""

from __future__ import annotations

import asyncio
import sys

from foredraft.v1 import verify_pb2, verify_pb2_grpc
from foredraft.wire.channel import bind, private_server


class Silent(verify_pb2_grpc.VerifyServiceServicer):
    async def Verify(self, request_iterator, context):
        async for _ in request_iterator:
            yield verify_pb2.VerifyResponse()


async def serve() -> None:
    server = private_server([])
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(Silent(), server)
    sys.stdout.write(bind(server, "127.0.0.1:0") + "\n")
    sys.stdout.flush()
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
