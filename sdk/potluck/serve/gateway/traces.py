"""Traces of the HTTP entrance for OpenTelemetry: a span for each request, and within it the time
that it waited and each batch in which devices computed rows of it.

Names and attributes of requests are those of OpenTelemetry's conventions for HTTP servers; what is
ours begins with `potluck.`. A request that brings `traceparent` (W3C Trace Context) goes on with
that trace. Nothing of this is loaded where no traces are asked for.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from potluck.optional_packages import needed
from potluck_wire import __version__

with needed():
    from opentelemetry.context import get_current
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as Exporting

    from potluck.serve.gateway.text import Endpoint
    from potluck.serve.runtime.pending_requests import Pending

Tell = Callable[["Pending"], None]  # of what became of a request


class Traces:
    """Makes the spans of an entrance.

    Parameters
    ----------
    provider
        Where they go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("potluck", __version__)

    def traced(self, path: str, endpoint: "Endpoint") -> "Endpoint":
        """The endpoint within a span.

        Parameters
        ----------
        path
            Of its route, as it is written there.
        endpoint
            What answers.
        """

        async def answer(request: Request) -> Response:
            with self._tracer.start_as_current_span(
                f"{request.method} {path}",
                context=extract(request.headers),
                kind=SpanKind.SERVER,
                attributes={
                    "http.request.method": request.method,
                    "http.route": path,
                    "url.path": request.scope["path"],
                    "url.scheme": request.scope["scheme"],
                },
            ) as span:
                response = await endpoint(request)
                span.set_attribute("http.response.status_code", response.status_code)
                if response.status_code >= 500:
                    span.set_status(Status(StatusCode.ERROR))
                return response

        return answer

    def tell(self) -> Tell:
        """Makes the spans of what devices did for requests of the span that is current here."""
        context = get_current()

        def tell(pending: "Pending") -> None:
            to_epoch_ns = time.time_ns() - time.monotonic_ns()
            ended_s = pending.answered_s if pending.is_over else time.monotonic()

            def add(name: str, begun_s: float, ended_s: float, **facts: int | list[str]) -> None:
                span = self._tracer.start_span(
                    name,
                    context,
                    attributes={
                        "potluck.service": pending.service,
                        **{f"potluck.{key}": value for key, value in facts.items()},
                    },
                    start_time=to_epoch_ns + int(1e9 * begun_s),
                )
                span.end(to_epoch_ns + int(1e9 * ended_s))

            began_s = min((batch.begun_s for batch in pending.batches), default=ended_s)
            add("wait", pending.arrived_s, began_s, rows=pending.rows)
            for batch in pending.batches:
                add(
                    "compute",
                    batch.begun_s,
                    batch.ended_s,
                    devices=[*batch.devices],
                    rows_together=batch.rows,
                )

        return tell


def exporting() -> "Exporting":
    """Sends spans by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_SERVICE_NAME and the others of OpenTelemetry say.

    Raises
    ------
    UserError
        OpenTelemetry is not installed.
    """
    with needed():
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as Exporting
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "potluck")
    provider = Exporting(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
