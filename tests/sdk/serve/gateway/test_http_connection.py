"""Clients of the entrance that close their own side of a connection, and still read."""

import asyncio
import json
import socket

import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
uvicorn = pytest.importorskip("uvicorn")
ServerState = pytest.importorskip("uvicorn.server").ServerState
HttpConnection = pytest.importorskip("potluck.serve.gateway.http_connection").HttpConnection
ROW = {"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}


@pytest.fixture(scope="module")
def net():
    return torch.nn.Linear(3, 2)


@pytest.fixture(scope="module")
def gateway(net):
    torch.set_num_threads(1)
    model = potluck.Model.from_torch(net, torch.randn(4, 3))
    with memory_home(1) as home:
        home.serve(model, "birds", slo=potluck.Latency(TIMEOUT_S)).wait()
        slo = potluck.Frequency(fps=2, tolerance_s=TIMEOUT_S)
        home.serve(model, "camera", slo=slo).wait()
        with home.gateway() as opened:
            yield opened


class Full(asyncio.Transport):
    """A connection of which the system takes nothing more; what is written is kept."""

    def __init__(self):
        super().__init__()
        self.limits = ()

    def set_write_buffer_limits(self, high=None, low=None):
        self.limits = high, low


def test_the_last_byte_that_the_system_does_not_take_is_waited_for():
    """TLS kept 512 KiB, and they were lost where they were not read in the time of a silence."""
    transport = Full()

    async def come():
        config = uvicorn.Config(lambda: None, log_config=None)
        connection = HttpConnection(config, ServerState(), {})
        connection.connection_made(transport)

    asyncio.run(come())
    assert transport.limits == (1, 0)


def request(path, body, version="1.1", **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{lines}\r\n{body}".encode()


def answers_of(gateway, sent):
    """All that comes until the other end closes, after our end is closed."""
    with socket.create_connection(("127.0.0.1", gateway.port), TIMEOUT_S) as asking:
        asking.sendall(sent)
        asking.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: asking.recv(2**16), b"")).decode()


def numbers(text):
    (output,) = json.loads(text)["outputs"]
    return output["data"]


def expected(net):
    with torch.no_grad():
        return pytest.approx(net(torch.tensor([1.0, 2.0, 3.0])).tolist(), abs=1e-5)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("n", [1, 3])
def test_whole_requests_are_answered_and_the_last_answer_ends_the_connection(
    gateway, net, version, n
):
    asked = request("/v2/models/birds/infer", json.dumps({"inputs": [ROW]}), version)
    _, *answers = answers_of(gateway, n * asked).split("HTTP/1.1 200 OK\r\n")
    assert len(answers) == (n if version == "1.1" else 1)  # HTTP/1.0 has one at a time
    for answer in answers:
        assert numbers(answer.partition("\r\n\r\n")[2]) == expected(net)


def test_a_stream_goes_on_to_its_end(gateway, net):
    line = json.dumps({"inputs": [ROW]})
    answer = answers_of(gateway, request("/v2/models/camera/stream", "\n".join(20 * [line])))
    events = [row for row in answer.splitlines() if row.startswith("data: ")]
    assert [numbers(row[6:]) for row in events] == 20 * [expected(net)]


def test_half_a_request_ends_the_connection(gateway):
    asked = request("/v2/models/birds/infer", json.dumps({"inputs": [ROW]}))
    assert answers_of(gateway, asked[:-1]) == ""
    assert answers_of(gateway, b"") == ""
    for n in (1, 30, len(asked) - 1):  # behind a whole one: nothing waits for its rest
        assert answers_of(gateway, asked + asked[:n]).count("HTTP/1.1") == 1
