"""The span of one SDK call, for programs that have set up OpenTelemetry.

In any other program it records nothing; a trace context that the program has put in place is
passed on all the same.
"""

from __future__ import annotations

from types import TracebackType

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from foredraft.results import Result
from foredraft.telemetry import names
from foredraft.telemetry.context import TRACEPARENT, write_parent


class CallSpan:
    """A block that is the call; ``metadata`` goes with it.

    Where the call outlives a block, `end` ends it; that is harmless when it has ended.
    """

    def __init__(self, *, chat: bool, model: str) -> None:
        operation = names.CHAT if chat else names.TEXT_COMPLETION
        attributes = {names.OPERATION_NAME: operation, names.PROVIDER_NAME: names.PROVIDER}
        if model:
            attributes[names.REQUEST_MODEL] = model
        tracer = trace.get_tracer(names.TRACER, schema_url=names.SCHEMA_URL)
        title = f"{operation} {model}".strip()
        self._span = tracer.start_span(title, kind=SpanKind.CLIENT, attributes=attributes)
        header = write_parent(self._span)
        self.metadata = ((TRACEPARENT, header),) if header else ()

    def __enter__(self) -> CallSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error)

    def answered(self, result: Result) -> Result:
        """Note what came back; gives it back."""
        if self._span.is_recording():
            self._span.set_attributes(
                {
                    names.RESPONSE_MODEL: result.model,
                    names.RESPONSE_FINISH_REASONS: [result.finish_reason],
                    names.USAGE_INPUT_TOKENS: result.stats.prompt_tokens,
                    names.USAGE_OUTPUT_TOKENS: result.stats.completion_tokens,
                }
            )
        return result

    def end(self, error: BaseException | None = None) -> None:
        if not self._span.is_recording():
            return
        if isinstance(error, Exception):
            self._span.set_attribute(names.ERROR_TYPE, type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
