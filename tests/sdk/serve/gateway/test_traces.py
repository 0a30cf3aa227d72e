"""Spans of the HTTP entrance, as OpenTelemetry's own SDK gets them."""

import http.client
import json
import time

import pytest

import potluck
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
INFER, STREAM = "/v2/models/{name}/infer", "/v2/models/{name}/stream"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def spans():
    return memory.InMemorySpanExporter()


@pytest.fixture(scope="module")
def gateway(spans):
    torch.set_num_threads(1)
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    model = potluck.Model.from_torch(torch.nn.Linear(4, 2), torch.randn(6, 4))
    with memory_home(2) as home:
        home.serve(model, "birds", slo=potluck.Latency(60.0)).wait()
        home.serve(model, "camera", slo=potluck.Frequency(fps=2, tolerance_s=60.0)).wait()
        with home.gateway(tracer_provider=provider, token="secret") as opened:
            yield opened


def asked(gateway, spans, path, document, *, token="secret", **headers):
    """The status, the span of the request, and those within it."""
    spans.clear()
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    try:
        headers["Authorization"] = f"Bearer {token}"
        connection.request("POST", path, json.dumps(document), headers)
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    for _ in range(1000):  # the span ends when the answer is on its way
        found = spans.get_finished_spans()
        if any(span.kind.name == "SERVER" for span in found):
            break
        time.sleep(0.01)
    (request,) = (span for span in found if span.kind.name == "SERVER")
    return response.status, request, [span for span in found if span is not request]


def tensor(rows, columns=4):
    data = [0.5] * rows * columns
    return {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [rows, columns], "data": data}]
    }


def test_a_request_has_a_span_with_its_waiting_and_its_batches(gateway, spans):
    before_ns = time.time_ns()
    status, request, within = asked(gateway, spans, "/v2/models/birds/infer", tensor(3))
    assert status == 200
    assert request.name == f"POST {INFER}"
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "http.route": INFER,
        "http.response.status_code": 200,
        "url.path": "/v2/models/birds/infer",
        "url.scheme": "http",
    }
    (wait,) = (span for span in within if span.name == "wait")
    computed = [span for span in within if span.name == "compute"]
    assert len(within) == 1 + len(computed) >= 2
    for span in within:
        assert span.parent.span_id == request.context.span_id
        assert span.attributes["potluck.service"] == "birds"
        assert before_ns < span.start_time <= span.end_time < time.time_ns()
    assert wait.attributes["potluck.rows"] == 3
    assert wait.end_time == min(span.start_time for span in computed)
    names = {name for span in computed for name in span.attributes["potluck.devices"]}
    assert names <= set(gateway.services["birds"].devices)
    assert sum(span.attributes["potluck.rows_together"] for span in computed) >= 3


def test_a_trace_that_a_client_began_goes_on(gateway, spans):
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    _, request, within = asked(gateway, spans, "/v2/models/birds/infer", tensor(1), **parent)
    assert {format(span.context.trace_id, "032x") for span in (request, *within)} == {TRACE}
    assert format(request.parent.span_id, "016x") == PARENT


def test_frames_of_a_stream_belong_to_its_request(gateway, spans):
    lines = "\n".join(json.dumps(tensor(1)) for _ in range(3))
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    spans.clear()
    connection.request(
        "POST", "/v2/models/camera/stream", lines, {"Authorization": "Bearer secret"}
    )
    assert connection.getresponse().read().count(b"data: ") == 3
    connection.close()
    found = spans.get_finished_spans()
    (request,) = (span for span in found if span.name == f"POST {STREAM}")
    computed = [span for span in found if span.name == "compute"]
    assert len(computed) == 3
    assert {span.parent.span_id for span in computed} == {request.context.span_id}


@pytest.mark.parametrize(
    ("path", "document", "token", "status"),
    [
        ("/v2/models/birds/infer", tensor(1, 5), "secret", 400),
        ("/v2/models/fish/infer", tensor(1), "secret", 404),
        ("/v2/models/birds/infer", tensor(1), "guessed", 401),
    ],
)
def test_refused_requests_have_a_span_with_their_status(
    gateway, spans, path, document, token, status
):
    got, request, within = asked(gateway, spans, path, document, token=token)
    assert got == request.attributes["http.response.status_code"] == status
    assert within == []
    assert request.status.status_code.name == "UNSET"  # it is the client's fault
