"""Channels and servers with every option explicit, each with the failure that asks for it.

Private hops (gateway to worker) notice a stopped peer within about two seconds; public ones
(client to gateway) are gentle, because there can be many of them behind slow networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# What anybody may send to a gateway, at either door: it is decoded before it can be refused.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
# To either door of a gateway: each holds a file, of which a process has only so many. And calls at
# a time on one of the gRPC door's.
MAX_CONNECTIONS = 1_024
_MAX_CALLS = 1_024

Options = tuple[tuple[str, int], ...]
Interceptors = Sequence["grpc.aio.ServerInterceptor[Any, Any]"]

# The default limit is 4 MiB for receiving and none for sending: a long prompt fails at the
# reader, far from its cause. Both ends get one limit that is larger than any legal message.
_SIZES: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

_PRIVATE_CHANNEL: Options = (
    *_SIZES,
    # A stream that is silent between steps must be probed, or a dead peer is never noticed.
    # With the timeout below a stopped one is within two seconds.
    ("grpc.keepalive_time_ms", 700),
    ("grpc.keepalive_timeout_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that is stopped but not dead keeps its socket open. Without this timeout (default:
    # one minute) its calls hang although keepalive is on.
    ("grpc.http2.ping_timeout_ms", 1_000),
    # A worker that comes back is used again at once, not after minutes of doubled waits.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Workers are neighbours: a proxy from the environment must not stand between them.
    ("grpc.enable_http_proxy", 0),
)

_PRIVATE_SERVER: Options = (
    *_SIZES,
    # Two processes on one port would each get half of the connections.
    ("grpc.so_reuseport", 0),
    # A worker computes for seconds (a long prompt) while its client pings every second: the
    # default server ends such a connection with "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    # The gateway may be the one that stops: its sequences must not hold memory for ever.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)

_PUBLIC_CHANNEL: Options = (
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Networks drop quiet connections; 30 s is what common servers accept without complaint.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

_PUBLIC_SERVER: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.so_reuseport", 0),
    # Clients may ping every ten seconds during a long silence (a queue, a long prompt).
    ("grpc.http2.min_ping_interval_without_data_ms", 9_000),
    # A client whose machine vanished is noticed within a minute and its request cancelled.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Who connects and says nothing holds a file. The defaults are two minutes and for ever; a
    # client without a call is not pinged, and opens its channel again when it has one.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # There is no limit on either by default. One connection too many is closed at once, which its
    # client is told as UNAVAILABLE; one call too many waits at its client.
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", _MAX_CALLS),
)


def private_channel(address: str) -> grpc.aio.Channel:
    """A channel to a worker at ``host:port`` or ``unix:path``."""
    return grpc.aio.insecure_channel(address, options=_PRIVATE_CHANNEL)


def public_channel(address: str) -> grpc.aio.Channel:
    """A channel to a gateway."""
    return grpc.aio.insecure_channel(address, options=_PUBLIC_CHANNEL)


def public_sync_channel(address: str) -> grpc.Channel:
    """A channel to a gateway for code without an event loop."""
    return grpc.insecure_channel(address, options=_PUBLIC_CHANNEL)


def private_server(interceptors: Interceptors) -> grpc.aio.Server:
    """The server of a worker."""
    return grpc.aio.server(interceptors=interceptors, options=_PRIVATE_SERVER)


def public_server(interceptors: Interceptors) -> grpc.aio.Server:
    """The server of a gateway."""
    return grpc.aio.server(interceptors=interceptors, options=_PUBLIC_SERVER)


def bind(server: grpc.aio.Server, address: str) -> str:
    """Listen on ``address`` and return it with the port that was given for port 0.

    Raises:
        RuntimeError: the address cannot be listened on.
    """
    port = server.add_insecure_port(address)
    if address.startswith("unix:"):
        return address
    host, _, _ = address.rpartition(":")
    return f"{host}:{port}"
