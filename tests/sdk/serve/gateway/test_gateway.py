"""The HTTP entrance, asked by Triton's own client and read by Prometheus' own parser."""

import copy
import gc
import gzip
import http.client
import json
import select
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np
import pytest

import potluck
from potluck.bench.http_processes import request
from potluck.errors import HomeError, NotServed, UserError
from potluck.serve.gateway.connection_limit import ConnectionLimit
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
triton = pytest.importorskip("tritonclient.http")
parser = pytest.importorskip("prometheus_client.parser")
URL = pytest.importorskip("starlette.datastructures").URL
Gateway = pytest.importorskip("potluck.serve.gateway.server").Gateway
LONG_S = 120.0
MAX_BODY_BYTES = 20_000


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers)


@pytest.fixture(scope="module")
def gateway(net):
    torch.set_num_threads(1)
    model = potluck.Model.from_torch(net, torch.randn(6, 8))
    with memory_home(2) as home:
        home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        slo = potluck.Frequency(fps=2, tolerance_s=LONG_S)
        home.serve(model, "camera", slo=slo).wait()
        with home.gateway(max_body_bytes=MAX_BODY_BYTES) as opened:
            yield opened


@pytest.fixture
def client(gateway):
    opened = triton.InferenceServerClient(f"127.0.0.1:{gateway.port}")
    yield opened
    opened.close()


def expected(net, x):
    with torch.no_grad():
        return net(torch.from_numpy(x)).numpy()


def answer_of(gateway, method, path, body=b"", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def rows(n):
    return np.random.default_rng(n).normal(size=(n, 8)).astype(np.float32)


def test_cycles_are_not_looked_for_among_all_objects_while_it_is_open():
    with Gateway(dict):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_triton_is_told_how_models_are_configured_and_what_they_have_done(gateway, client):
    before = client.get_inference_statistics("birds")["model_stats"][0]
    given = triton.InferInput("input", [3, 8], "FP32")
    given.set_data_from_numpy(rows(3))
    client.infer("birds", [given])
    (now,) = client.get_inference_statistics("birds", "1")["model_stats"]
    assert now["inference_count"] == before["inference_count"] + 3
    assert now["execution_count"] > before["execution_count"]
    took = now["inference_stats"]
    assert took["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert took["success"]["ns"] == took["queue"]["ns"] + took["compute_infer"]["ns"] > 0
    everything = client.get_inference_statistics()["model_stats"]
    assert {row["name"] for row in everything} == {"birds", "camera"}
    config = client.get_model_config("birds")
    assert config == client.get_model_config("birds", "1")
    assert config["max_batch_size"] == 1024
    (port,) = config["input"]
    assert (port["name"], port["data_type"], port["dims"]) == ("input", "TYPE_FP32", [8])
    (row,) = [row for row in client.get_model_repository_index() if row["name"] == "birds"]
    assert row == {"name": "birds", "version": "1", "state": "READY", "reason": ""}
    ready = answer_of(gateway, "POST", "/v2/repository/index", b'{"ready": true}')
    assert len(json.loads(ready[1])) == 2
    for path in ("/v2/models/fish/config", "/v2/models/fish/stats", "/v2/models/birds/versions/2"):
        assert answer_of(gateway, "GET", path)[0] == 404


@pytest.mark.long
def test_triton_finds_the_server_and_its_models(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("birds")
    assert client.get_server_metadata()["name"] == "potluck"
    about = client.get_model_metadata("birds")
    (port,) = about["inputs"]
    assert (port["name"], port["datatype"], port["shape"]) == ("input", "FP32", [-1, 8])
    assert not client.is_model_ready("fish")


def test_the_request_of_the_bench_is_answered(gateway):
    message = request("ours", gateway.port, 8).replace(b"/net/", b"/birds/")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as client:
        client.sendall(message)
        assert client.recv(1024).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("n", [1, 5])
def test_triton_gets_what_the_module_answers(client, net, binary, n):
    x = rows(n)
    given = triton.InferInput("input", [n, 8], "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    name = client.get_model_metadata("birds")["outputs"][0]["name"]
    wanted = triton.InferRequestedOutput(name, binary_data=binary)
    result = client.infer("birds", [given], outputs=[wanted], request_id="r1")
    assert result.get_response()["id"] == "r1"
    assert np.allclose(result.as_numpy(name), expected(net, x), atol=1e-6)


def test_triton_asks_a_model_in_bfloat16(net):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    half = copy.deepcopy(net).bfloat16()
    x = rows(3).astype(bfloat16)
    given = triton.InferInput("input", [3, 8], "BF16")
    given.set_data_from_numpy(x)
    model = potluck.Model.from_torch(half, torch.zeros(2, 8, dtype=torch.bfloat16))
    with memory_home(1) as home, ExitStack() as stack:
        home.serve(model, "half", slo=potluck.Latency(LONG_S)).wait()
        opened = stack.enter_context(home.gateway())
        with triton.InferenceServerClient(f"127.0.0.1:{opened.port}") as client:
            (output,) = client.get_model_metadata("half")["outputs"]
            result = client.infer("half", [given])
    assert output["datatype"] == "BF16"
    with torch.no_grad():
        wanted = half(torch.from_numpy(x.astype(np.float32)).bfloat16()).float().numpy()
    assert np.allclose(result.as_numpy(output["name"]).astype(np.float32), wanted, atol=0.05)


def test_many_clients_at_once_get_their_own_answers(gateway, net):
    def ask(n):
        x = rows(1 + n % 4)
        row = {"name": "input", "datatype": "FP32", "shape": [*x.shape], "data": x.tolist()}
        status, body, _ = answer_of(
            gateway, "POST", "/v2/models/birds/infer", json.dumps({"inputs": [row]})
        )
        assert status == 200
        (output,) = json.loads(body)["outputs"]
        return np.allclose(np.reshape(output["data"], output["shape"]), expected(net, x), atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(64)))


def test_a_stream_of_frames_is_answered_in_order_as_events(gateway, net):
    x = rows(12)
    lines = [
        json.dumps(
            {
                "id": f"f{i}",
                "inputs": [
                    {"name": "input", "datatype": "FP32", "shape": [1, 8], "data": x[i].tolist()}
                ],
            }
        )
        for i in range(12)
    ]
    status, body, headers = answer_of(
        gateway, "POST", "/v2/models/camera/stream", "\n".join(lines).encode()
    )
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = [event.split("\n") for event in body.decode().split("\n\n") if event]
    assert [event[0] for event in events] == [f"id: {i}" for i in range(12)]
    documents = [json.loads(event[1].removeprefix("data: ")) for event in events]
    assert [document["id"] for document in documents] == [f"f{i}" for i in range(12)]
    answers = np.array([document["outputs"][0]["data"] for document in documents])
    assert np.allclose(answers, expected(net, x), atol=1e-5)


def test_prometheus_reads_the_metrics(gateway, client):
    given = triton.InferInput("input", [1, 8], "FP32")
    given.set_data_from_numpy(rows(1))
    client.infer("birds", [given])
    status, body, headers = answer_of(gateway, "GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in parser.text_string_to_metric_families(body.decode())}
    assert families["potluck_answers"].type == "counter"
    birds = {
        sample.name: sample.value
        for sample in families["potluck_latency_seconds"].samples
        if sample.labels == {"service": "birds"}
    }
    stats = gateway.services["birds"].stats
    assert birds["potluck_latency_seconds_count"] == stats.n_answered
    buckets = [
        sample.value
        for sample in families["potluck_latency_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["service"] == "birds"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == stats.n_answered


SHAPE, NO_BYTES = "inputs[0].shape", {"parameters": {"binary_data_size": 0}}
ROW = {"name": "input", "datatype": "FP32", "shape": [1, 8], "data": [0.0] * 8}


@pytest.mark.parametrize(
    ("document", "status", "field"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b"[]", 400, "body"),
        (b'{"inputs": NaN}', 400, "body"),
        (b"[" * 5000, 400, "body"),
        ({}, 400, "inputs"),
        ({"inputs": 3}, 400, "inputs"),
        ({"inputs": [3]}, 400, "inputs"),
        ({"inputs": [ROW] * 65}, 400, "inputs"),
        ({"inputs": [ROW, ROW]}, 400, "inputs[1].name"),
        ({"inputs": [{**ROW, "name": 3}]}, 400, "inputs[0].name"),
        ({"inputs": [{**ROW, "name": "x" * 300}]}, 400, "inputs[0].name"),
        ({"inputs": [{**ROW, "name": "other"}]}, 400, "inputs[0].name"),
        ({"inputs": [{**ROW, "datatype": "FP99"}]}, 400, "inputs[0].datatype"),
        ({"inputs": [{**ROW, "datatype": "INT64", "data": [0] * 8}]}, 400, "inputs.input.datatype"),
        ({"inputs": [{**ROW, "shape": [1, -8]}]}, 400, "inputs[0].shape"),
        ({"inputs": [{**ROW, "shape": [1, True]}]}, 400, "inputs[0].shape"),
        ({"inputs": [{**ROW, "shape": [2**30, 2**30]}]}, 400, "inputs[0].shape"),
        ({"inputs": [{**ROW, "shape": [1] * 17}]}, 400, "inputs[0].shape"),
        ({"inputs": [{**ROW, "shape": [8, 1]}]}, 400, "inputs.input.shape"),
        ({"inputs": [{**ROW, "shape": [0, 8], "data": []}]}, 400, "inputs.input.shape"),
        ({"inputs": [{**ROW, "data": [0.0] * 7}]}, 400, "inputs[0].data"),
        ({"inputs": [{**ROW, "data": ["a"] * 8}]}, 400, "inputs[0].data"),
        ({"inputs": [{**ROW, "data": [[0.0] * 7, 3.0]}]}, 400, "inputs[0].data"),
        (
            {"inputs": [{**ROW, "parameters": {"binary_data_size": 10**12}}]},
            400,
            "inputs[0].parameters.binary_data_size",
        ),
        (
            {"inputs": [{**ROW, "parameters": {"binary_data_size": 32}}]},
            400,
            "inputs[0].parameters.binary_data_size",
        ),
        ({"inputs": [{**ROW, "parameters": 3}]}, 400, "inputs[0].parameters"),
        ({"inputs": [ROW], "outputs": [{"name": "no"}]}, 400, "outputs"),
        ({"inputs": [ROW], "parameters": {"timeout": -1}}, 400, "parameters.timeout"),
        ({"inputs": [ROW], "id": 3}, 400, "id"),
        ({"inputs": [ROW], "parameters": {"timeout": 10**4000}}, 400, "parameters.timeout"),
        ({"inputs": [{**ROW, "shape": [0] + [2**31 - 1] * 15, "data": []}]}, 400, SHAPE),
        ({"inputs": [{**ROW, "shape": [2**31 - 1] * 15 + [0], **NO_BYTES}]}, 400, SHAPE),
        ({"inputs": [{**ROW, "shape": [0, 8], **NO_BYTES}]}, 400, "inputs.input.shape"),
        ({"inputs": [{**ROW, "data": [10**400] * 8}]}, 400, "inputs[0].data"),
        ({"inputs": [{**ROW, "data": [1e300] * 8}]}, 400, "inputs[0].data"),
    ],
)
@pytest.mark.parametrize("verb", ["birds/infer", "camera/stream"])
def test_what_is_no_request_is_refused_by_its_field(gateway, document, status, field, verb):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    if verb == "camera/stream" and field == "outputs":
        pytest.skip("a stream answers with all outputs")
    got, answer, _ = answer_of(gateway, "POST", f"/v2/models/{verb}", body)
    refusal = json.loads(answer)
    assert (got, refusal["field"]) == (status, field), refusal


def test_a_header_length_beyond_the_body_is_refused(gateway):
    for length in ("999999", "-1", "x", "9" * 30):
        status, body, _ = answer_of(
            gateway, "POST", "/v2/models/birds/infer", b"{}", Inference_Header_Content_Length=length
        )
        assert (status, json.loads(body)["field"]) == (400, "Inference-Header-Content-Length")


def test_a_body_that_is_too_long_is_refused_before_it_is_read(gateway):
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
        s.sendall(
            b"POST /v2/models/birds/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 999999999\r\n\r\n"
        )
        assert s.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_in_chunks_that_becomes_too_long_is_refused(gateway):
    def chunks():
        for _ in range(10):
            yield b" " * (MAX_BODY_BYTES // 4)

    status, body, _ = answer_of(gateway, "POST", "/v2/models/birds/infer", chunks())
    assert status == 413
    assert str(MAX_BODY_BYTES) in json.loads(body)["error"]


def test_a_client_that_leaves_half_way_harms_nobody(gateway, net):
    with socket.create_connection(("127.0.0.1", gateway.port)) as s:
        s.sendall(
            b"POST /v2/models/birds/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 900\r\n\r\n{"
        )
    body = json.dumps({"inputs": [ROW]}).encode()
    assert answer_of(gateway, "POST", "/v2/models/birds/infer", body)[0] == 200


def test_unknown_models_and_routes_are_404(gateway):
    for method, path in [
        ("GET", "/v2/models/fish"),
        ("POST", "/v2/models/fish/infer"),
        ("GET", "/v2/models/..%2f..%2fetc/ready"),
        ("GET", "/nothing"),
    ]:
        status, body, _ = answer_of(gateway, method, path)
        assert (status, "error" in json.loads(body)) == (404, True)
    status, body, headers = answer_of(gateway, "GET", "/v2/models/birds/infer")
    assert (status, headers["allow"], "error" in json.loads(body)) == (405, "POST", True)


def test_a_body_that_is_compressed_is_refused_by_its_header(gateway):
    body = gzip.compress(json.dumps({"inputs": [ROW]}).encode())
    path = "/v2/models/birds/infer"
    status, answer, _ = answer_of(gateway, "POST", path, body, Content_Encoding="gzip")
    assert (status, "Content-Encoding" in json.loads(answer)["error"]) == (415, True)


def test_more_rows_than_can_ever_wait_are_the_clients_fault(gateway):
    n = 1025
    inputs = [{**ROW, "shape": [n, 8], "data": [0] * (8 * n)}]
    body = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    status, answer, headers = answer_of(gateway, "POST", "/v2/models/birds/infer", body)
    assert status == 422, answer[:300]
    assert json.loads(answer)["field"] == "inputs"
    assert "1024 rows, not 1025" in json.loads(answer)["error"]
    assert "retry-after" not in headers


def test_a_limit_of_the_clients_own_that_cannot_be_held_is_a_503_at_once(gateway):
    document = {"inputs": [ROW], "parameters": {"timeout": 1}}  # microseconds
    status, body, headers = answer_of(
        gateway, "POST", "/v2/models/birds/infer", json.dumps(document).encode()
    )
    refusal = json.loads(body)
    assert status == 503
    assert refusal["limit_s"] == 1e-6
    assert refusal["soonest_s"] > 1e-6
    assert int(headers["retry-after"]) >= 1


def test_a_token_is_asked_for_and_compared(net):
    model = potluck.Model.from_torch(net, torch.randn(6, 8))
    with memory_home(1) as home:
        home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        with home.gateway(token="sesame") as opened:
            body = json.dumps({"inputs": [ROW]}).encode()
            path = "/v2/models/birds/infer"
            assert answer_of(opened, "POST", path, body)[0] == 401
            for wrong in ("Bearer wrong", "Bearer ", "sesame", "Basic sesame", "Bearer sesame x"):
                assert answer_of(opened, "POST", path, body, Authorization=wrong)[0] == 401
            for right in ("Bearer sesame", "bearer sesame", "BEARER  sesame"):
                assert answer_of(opened, "POST", path, body, Authorization=right)[0] == 200
            assert answer_of(opened, "GET", "/metrics")[0] == 401
            assert answer_of(opened, "GET", "/v2/health/live")[0] == 200


@pytest.mark.parametrize("host", ["x/v2/health/live?", "x/v2/health/live#", "/v2/health/live?"])
def test_a_host_that_looks_like_the_open_route_opens_no_other(monkeypatch, host):
    """Starlette before 1.0 made the address of a request of what `Host` says."""

    def url(request):
        return URL(f"http://{request.headers['host']}{request.scope['path']}")

    monkeypatch.setattr("starlette.requests.Request.url", property(url))
    with Gateway(dict, token="sesame") as opened:
        for path in ("/metrics", "/v2/models/birds"):
            assert answer_of(opened, "GET", path, Host=host)[0] == 401
        assert answer_of(opened, "GET", "/v2/health/live", Host=host)[0] == 200


def test_it_is_not_open_to_others_without_a_token():
    with memory_home(1) as home:
        for host in ("0.0.0.0", "::", "192.168.1.7"):
            with pytest.raises(UserError, match="no token is asked for"):
                home.gateway(host=host)


@pytest.mark.parametrize("token", [" ", "a b", "café", "a\r\nb", "tab\t", "=", "\x00"])
def test_a_token_that_no_client_can_show_is_told_at_once(token):
    with memory_home(1) as home, pytest.raises(UserError, match="cannot be shown"):
        home.gateway(token=token)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:99"}, 200),  # as through a tunnel
        ({"Host": "[::1]:8000", "Origin": "http://[::1]:8000"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/v2/health/live", "/metrics", "/v2/models/birds"])
def test_who_comes_by_another_name_than_this_computers_gets_nothing(gateway, path, headers, status):
    assert answer_of(gateway, "GET", path, **headers)[0] == status


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
    ],
)
def test_what_one_server_may_take_for_two_requests_is_none(gateway, lengths):
    """RFC 9112, section 6.1: its connection ends, so that what follows is not read as another."""
    head = f"POST /v2/models/birds/infer HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n"
    hidden = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.settimeout(LONG_S)
        connection.sendall(f"{head}0\r\n\r\n{hidden}".encode())
        heard = b""
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                heard += data
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert b"Content-Length" in heard
    assert heard.count(b"HTTP/1.1 ") == 1


def test_a_page_of_another_place_computes_nothing(gateway):
    n_before = gateway.services["birds"].stats.n_answered
    body, headers = json.dumps({"inputs": [ROW]}), {"Content_Type": "text/plain"}
    path = "/v2/models/birds/infer"
    assert answer_of(gateway, "POST", path, body, Origin="http://evil.example", **headers)[0] == 403
    assert gateway.services["birds"].stats.n_answered == n_before


def is_closed(silent):
    """Whether the other end closes it, at last."""
    try:
        return silent.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "data", [b"", b"GET /v2 HTT", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: "]
)
def test_silent_connections_shut_nobody_out_and_are_closed(data):
    limit = ConnectionLimit(max_open=8, max_of_address=8, head_s=0.5)
    with Gateway(dict, limit=limit) as opened:
        silent = [socket.create_connection(("127.0.0.1", opened.port), 60) for _ in range(40)]
        for each in silent:
            with suppress(OSError):
                each.sendall(data)
        assert answer_of(opened, "GET", "/v2/health/live")[0] == 200
        assert all(map(is_closed, silent))
        for each in silent:
            each.close()
        assert answer_of(opened, "GET", "/v2/health/live")[0] == 200


def test_the_limit_that_is_given_counts():
    limit = ConnectionLimit()
    with (
        Gateway(dict, limit=limit) as opened,
        socket.create_connection(("127.0.0.1", opened.port), 60) as first,
    ):
        first.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(12) == b"HTTP/1.1 200"
        assert len(limit) == 1


def test_no_header_says_which_connection_asks():
    """Else a request would be cut off as silence while it is computed, and others be named."""
    askers = []

    class Noting(ConnectionLimit):
        def ask(self, who):
            askers.append(who)
            super().ask(who)

    with Gateway(dict, limit=Noting()) as opened:
        headers = {"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}
        connection = http.client.HTTPConnection("127.0.0.1", opened.port, timeout=60)
        connection.connect()
        own = connection.sock.getsockname()
        connection.request("GET", "/v2/health/live", headers=headers)
        assert connection.getresponse().status == 200
        connection.close()
    assert askers == [own]


@pytest.mark.long
def test_connections_that_break_and_come_again_from_one_port_take_one_place():
    limit = ConnectionLimit(max_of_address=8)
    with Gateway(dict, limit=limit) as opened:
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        for _ in range(3000):  # some come before the end of the one before is seen
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                again.bind(("127.0.0.1", port))
                again.connect(("127.0.0.1", opened.port))
        with ExitStack() as stack:
            for _ in range(8):
                silent = socket.create_connection(("127.0.0.1", opened.port), 60)
                stack.enter_context(silent)
                silent.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert silent.recv(12) == b"HTTP/1.1 200"


def n_free_streams(service):
    """How many more it would take; all of them end as they are forgotten."""
    held = []
    with suppress(NotServed):
        while True:
            held.append(service.stream([torch.zeros(1, 8)], fps=50))
    return len(held)


@pytest.mark.few(1)
@pytest.mark.parametrize("n_blanks", [0, 100_000])
def test_a_stream_whose_reader_has_left_ends(gateway, n_blanks):
    """Before its first event, too: a long body is read beside the rest, and it leaves meanwhile."""
    row = {"name": "input", "datatype": "FP32", "shape": [1, 8], "data": [0.0] * 8}
    body = json.dumps({"inputs": [row]}).encode() + b" " * n_blanks
    path, camera = "/v2/models/camera/stream", gateway.services["camera"]
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    n_free = n_free_streams(camera)
    assert n_free > 1
    with Gateway(lambda: gateway.services) as opened:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", opened.port), 60) as leaving:
                leaving.sendall(head.encode() + body)
        assert answer_of(opened, "POST", path, body)[0] == 200
    # a thread that is at the next frame ends its stream once it has that
    assert any(n_free_streams(camera) == n_free for _ in range(50))


class SlowToAsk:
    """A service whose requests and frames take a while to be asked for: until they may go on."""

    def __init__(self, service):
        self._service = service
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._service, name)

    def _wait(self):
        self.has_begun.set()
        assert self.may_go_on.wait(60)

    def request(self, *inputs, **named):
        self._wait()
        return self._service.request(*inputs, **named)

    def pending_frames(self, frames):
        self._wait()
        yield from self._service.pending_frames(frames)


@pytest.mark.parametrize(
    ("name", "verb", "n_rows"), [("camera", "stream", 1), ("birds", "infer", 64)]
)
def test_others_are_answered_while_very_much_is_asked_for(gateway, name, verb, n_rows):
    slow = SlowToAsk(gateway.services[name])
    data = [0.0] * 8 * n_rows
    row = {"name": "input", "datatype": "FP32", "shape": [n_rows, 8], "data": data}
    body, path = json.dumps({"inputs": [row]}).encode(), f"/v2/models/{name}/{verb}"
    with Gateway(lambda: {name: slow}) as opened, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(answer_of, opened, "POST", path, body)
        assert slow.has_begun.wait(60)
        assert answer_of(opened, "GET", "/v2/health/live")[0] == 200
        slow.may_go_on.set()
        assert pending.result()[0] == 200


def test_bodies_have_room_together_and_give_it_back(gateway):
    head = (
        b"POST /v2/models/birds/infer HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: %d\r\n\r\n" % MAX_BODY_BYTES
    )
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 60))
            for _ in range(6)
        ]
        for each in held:  # all but one byte; of four there is room
            each.sendall(head + b" " * (MAX_BODY_BYTES - 1))
        refused, _, _ = select.select(held, [], [], 60)
        assert refused
        assert all(each.recv(100).startswith(b"HTTP/1.1 503 ") for each in refused)
    body = json.dumps({"inputs": [ROW]}).encode()
    while answer_of(gateway, "POST", "/v2/models/birds/infer", body + b" " * 15_000)[0] == 503:
        pass  # until it has noticed that they are gone
    assert answer_of(gateway, "POST", "/v2/models/birds/infer", body)[0] == 200


def test_an_entrance_that_is_closed_leaves_no_thread(gateway):
    def n_threads():
        return sum(thread.name.startswith("potluck gateway") for thread in threading.enumerate())

    n_before = n_threads()
    body = json.dumps({"inputs": [ROW]}).encode() + b" " * 100_000  # read in a thread
    with Gateway(lambda: gateway.services) as opened:
        assert answer_of(opened, "POST", "/v2/models/birds/infer", body)[0] == 200
        assert n_threads() == n_before + 2
    while n_threads() > n_before:
        pass


def test_a_port_that_is_taken_is_said(gateway):
    with memory_home(1) as home, pytest.raises(HomeError, match="nothing can listen"):
        home.gateway(port=gateway.port)


def test_it_closes_with_its_home(net):
    with memory_home(1) as home:
        opened = home.gateway()
        assert answer_of(opened, "GET", "/v2/health/live")[0] == 200
    with pytest.raises(OSError, match="refused"):
        answer_of(opened, "GET", "/v2/health/live")
