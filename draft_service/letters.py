"""What gateways are told of answers, as messages of their streams."""

from __future__ import annotations

from draft_service.answers import Answer
from foredraft.wire.codec.draft import Response
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.messages import DraftTimings, Nack, NodeBlock, NodeBlocks


class Letters:
    """Guesses are told at once, and what they took with them.

    Where they go by a lane, a gateway hears of the work when there are outcomes to be told, which
    is about once a second.
    """

    def __init__(self) -> None:
        self._untold: dict[int, DraftTimings] = {}  # by stream

    def forget(self, stream: int) -> None:
        """Nobody listens there any more."""
        self._untold.pop(stream, None)

    def write(self, answer: Answer) -> Response | None:
        """The message; None if there is no need of one now."""
        content = answer.content
        if isinstance(content, Nack):
            return content
        timings = self._untold.pop(answer.stream, DraftTimings()) + content.timings
        if content.by_lane and not (content.batches or content.outcomes):
            self._untold[answer.stream] = timings
            return None
        blocks = tuple(
            NodeBlock(worker, encode_nodes(batch)) for worker, batch in content.batches.items()
        )
        return NodeBlocks(blocks, timings, content.outcomes)
