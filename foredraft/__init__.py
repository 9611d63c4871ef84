"""Foredraft: serves a language model faster without changing a token.

The SDK: ``with Client("127.0.0.1:50051") as client: client.generate("Once upon a time")``.
"""

from foredraft.aio import AsyncClient, AsyncStream
from foredraft.client import Client, Stream
from foredraft.errors import (
    DeadlineExceeded,
    ForedraftError,
    Internal,
    InvalidRequest,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from foredraft.results import Delta, Model, Result, Stats, TokenLogprob, TopLogprob

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "DeadlineExceeded",
    "Delta",
    "ForedraftError",
    "Internal",
    "InvalidRequest",
    "Model",
    "Overloaded",
    "Result",
    "Stats",
    "Stream",
    "TokenLogprob",
    "TopLogprob",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
]
