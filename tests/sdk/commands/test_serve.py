"""`potluck serve` from a terminal: a model of a file, over HTTP, on agents of this machine."""

import http.client
import json
import re
import signal
import subprocess
import sys

import pytest

import potluck
from potluck.cli import main
from potluck.display.serving_table import read_metrics, serving_table

torch = pytest.importorskip("torch")
pytest.importorskip("uvicorn")


@pytest.mark.slow
def test_serves_a_file_until_it_is_told_to_end(tmp_path, capsys):
    net = torch.nn.Linear(3, 2)
    potluck.Model.from_torch(net, torch.randn(2, 3)).save(tmp_path / "birds.potluck")
    command = [
        *(sys.executable, "-m", "potluck", "serve", "--http", "127.0.0.1:0", "--local", "1"),
        *("--latency", "60", "--model", f"birds={tmp_path / 'birds.potluck'}"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "no entrance is asked for"),
        (["--http", "127.0.0.1:0"], "nothing to serve"),
        (["--http", "here"], "HOST:PORT"),
        (["--http", "127.0.0.1:0", "--model", "birds"], "NAME=FILE"),
        (["--http", "127.0.0.1:0", "--model", "b=no.onnx"], "no.onnx"),
        (["--http", "127.0.0.1:0", "--latency", "0"], "limit_s"),
        (["top", "--http", "127.0.0.1:1"], "nobody serves"),
    ],
)
def test_wrong_usage_is_one_line(options, text, capsys):
    assert main(["serve", *options]) == 1
    assert text in capsys.readouterr().err


def test_the_table_shows_rates_and_refusals():
    page = (
        'potluck_answers_total{service="birds"} %d\n'
        'potluck_refused_total{service="birds",reason="queue full"} 3\n'
        'potluck_refused_total{service="birds",reason="timed out"} 4\n'
        'potluck_rows_total{service="birds",device="nas"} 9\n'
        'potluck_latency_seconds_sum{service="birds"} 1.5\n'
        "nonsense\n"
    )
    table = serving_table(read_metrics(page % 30), read_metrics(page % 10), 2.0)
    row = [next(iter(column.cells)) for column in table.columns]
    assert row == ["birds", "nas", "10.0", "0", "7", "0", "0", "50.0 ms"]
