"""`potluck serve` from a terminal: a model of a file, over HTTP, on agents of this machine."""

import gzip
import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import potluck
from potluck.cli import main
from potluck.display.serving_table import MAX_SERVICES, read_metrics, serving_table

torch = pytest.importorskip("torch")
pytest.importorskip("uvicorn")


@pytest.fixture
def collector():
    """Takes OTLP over HTTP, as OpenTelemetry's collector does: where it is, and what came."""
    taken = []

    class Collecting(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            taken.append((self.path, gzip.decompress(body) if is_packed else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collecting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()
        thread.join()


@pytest.mark.long
@pytest.mark.slow
def test_serves_a_file_until_it_is_told_to_end(tmp_path, capsys, collector):
    otlp = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    endpoint, taken = collector
    net = torch.nn.Linear(3, 2)
    potluck.Model.from_torch(net, torch.randn(2, 3)).save(tmp_path / "birds.potluck")
    command = [
        *(sys.executable, "-m", "potluck", "serve", "--http", "127.0.0.1:0", "--local", "1"),
        *("--latency", "60", "--model", f"birds={tmp_path / 'birds.potluck'}", "--traces"),
    ]
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines[0].startswith("birds: on local-1")
            port = int(re.fullmatch(r"Serving at http://127.0.0.1:(\d+)\n", lines[1])[1])
            row = {"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/v2/models/birds/infer", json.dumps({"inputs": [row]}))
            (output,) = json.loads(connection.getresponse().read())["outputs"]
            connection.close()
            expected = net(torch.tensor([[1.0, 2.0, 3.0]])).flatten().tolist()
            assert output["data"] == pytest.approx(expected, abs=1e-5)
            assert main(["serve", "top", "--once", "--http", f"127.0.0.1:{port}"]) == 0
            assert "birds" in capsys.readouterr().out
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert {path for path, _ in taken} == {"/v1/traces"}
    names = [
        span.name
        for _, body in taken
        for resource in otlp.ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    expected_names = ["GET /metrics", "POST /v2/models/{name}/infer", "compute", "wait"]
    assert sorted(names) == expected_names


class SignalledHome:
    """A home that is told to end while it places a model, and once more while it closes."""

    def __init__(self, number):
        self.number, self.n_closed = number, 0

    def serve(self, *_, **__):
        signal.raise_signal(self.number)
        raise AssertionError("the placement goes on")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        signal.raise_signal(self.number)
        self.n_closed += 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_placement_and_its_home_is_closed(number, tmp_path, monkeypatch):
    path, home = tmp_path / "birds.potluck", SignalledHome(number)
    potluck.Model.from_torch(torch.nn.Linear(3, 2), torch.randn(2, 3)).save(path)
    monkeypatch.setattr("potluck.home.Home.local", lambda n: home)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        serving = ["serve", "--http", "127.0.0.1:0", "--local", "1", "--model", f"birds={path}"]
        assert main(serving) == 130
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert home.n_closed == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "no entrance is asked for"),
        (["--http", "127.0.0.1:0"], "nothing to serve"),
        (["--http", "here"], "HOST:PORT"),
        (["--http", "127.0.0.1:0", "--model", "birds"], "NAME=FILE"),
        (["--http", "127.0.0.1:0", "--model", "b=no.onnx"], "no.onnx"),
        (["--http", "127.0.0.1:0", "--model", "b="], "NAME=FILE"),
        (["--http", "127.0.0.1:0", "--model", "../b=b.onnx"], "letters, digits"),
        (["--http", "127.0.0.1:0", "--model", "b=1.onnx", "--model", "b=2.onnx"], "two models"),
        (["--http", "127.0.0.1:0", "--latency", "0"], "limit_s"),
        (["--http", "127.0.0.1:²"], "HOST:PORT"),
        (["--http", "0.0.0.0:0"], "POTLUCK_SERVE_TOKEN"),
        (["--http", "127.0.0.1:0", "--key", "key.pem"], "key without a certificate"),
        (["--http", "127.0.0.1:0", "--certificate", "no.pem"], "no.pem cannot be used"),
        (["top", "--http", "127.0.0.1:1"], "nobody serves"),
    ],
)
def test_wrong_usage_is_one_line(options, text, capsys):
    assert main(["serve", *options]) == 1
    assert text in capsys.readouterr().err


def test_the_table_shows_who_has_it_now_and_rates_and_refusals():
    page = (
        'potluck_answers_total{service="birds"} %d\n'
        'potluck_refused_total{service="birds",reason="queue full"} 3\n'
        'potluck_refused_total{service="birds",reason="timed out"} 4\n'
        'potluck_rows_total{service="birds",device="nas"} 9\n'
        'potluck_rows_total{service="birds",device="gone"} 9\n'
        'potluck_batch_rows{service="birds",device="nas"} 8\n'
        'potluck_latency_seconds_sum{service="birds"} 1.5\n'
        "nonsense\n"
    )
    table = serving_table(read_metrics(page % 30), read_metrics(page % 10), 2.0)
    row = [next(iter(column.cells)) for column in table.columns]
    assert [*map(str, row)] == ["birds", "nas (8)", "10.0", "0", "7", "0", "0", "50.0 ms"]


def top_of(answer, capsys):
    """What `serve top` says of a server that says this: code, output and errors."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def say():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        serving = pool.submit(say)
        code = main(["serve", "top", "--once", "--http", f"127.0.0.1:{server.getsockname()[1]}"])
        serving.result()
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_answer_is_told_in_one_line(answer, capsys):
    code, out, err = top_of(answer, capsys)
    assert (code, out) == (1, "")
    assert "nobody serves at 127.0.0.1" in err


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        (r'potluck_answers_total{service="[/]"} 5', "[/]"),
        (r'potluck_answers_total{service="[b]x[/b]"} 5', "[b]x[/b]"),
        (r'potluck_batch_rows{service="a",device="[/]"} 5', "[/]"),
        (r'potluck_answers_total{service="a\"b\\c"} 5', 'a"b\\c'),
        ('potluck_answers_total{service="\x1b[2Ja"} 5', "a"),
        ('potluck_answers_total{service="a"} e-+.', "services"),
        (
            "".join(f'potluck_answers_total{{service="s{n}"}} 5\n' for n in range(3000)),
            f"s{MAX_SERVICES - 1}",
        ),
    ],
)
def test_what_another_page_says_is_shown_as_it_is_and_harmless(page, shown, capsys):
    body = page.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    code, out, _ = top_of(head + body, capsys)
    assert code == 0
    assert shown in out
    assert "\x1b" not in out
    assert out.count("\n") < MAX_SERVICES + 20
