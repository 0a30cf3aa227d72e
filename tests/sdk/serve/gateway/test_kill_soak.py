"""An agent is killed every two seconds, for minutes, while clients ask a service over HTTP: each
request that was sent is answered or refused once, and what is answered is right.
"""

import http.client
import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import PotluckError
from potluck.testing.faults import agents_of

torch = pytest.importorskip("torch")
pytest.importorskip("potluck.serve.gateway.server")
SOAK_S = float(os.environ.get("POTLUCK_SOAK_S", "180"))
EVERY_S = 2.0
N_CLIENTS = 6


class Client(threading.Thread):
    """Asks one request after the other, each with a number of its own, until it is told to stop."""

    def __init__(self, port, net, number, stop):
        super().__init__(name=f"client {number}", daemon=True)
        self._port, self._net = port, net
        self._number, self._stop_asking = number, stop
        self.ends = Counter()
        self.wrong = []

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        made = np.random.default_rng(self._number)
        while not self._stop_asking.is_set():
            x = made.normal(size=(1 + self._number % 3, 8)).astype(np.float32)
            name = f"{self._number}-{sum(self.ends.values())}"
            try:
                self.ends[self._ask(connection, name, x)] += 1
            except Exception as error:  # no answer is none, whatever the reason
                self.wrong.append(f"{name}: {type(error).__name__}: {error}")
                connection.close()
        connection.close()

    def _ask(self, connection, name, x):
        given = {"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
        body = json.dumps({"id": name, "inputs": [given]})
        connection.request("POST", "/v2/models/birds/infer", body)
        response = connection.getresponse()
        document = json.loads(response.read())
        if response.status != 200:
            assert response.status in (429, 500, 503), document
            assert document["error"]
            return "refused"
        assert document["id"] == name, document  # not another one's answer
        (output,) = document["outputs"]
        with torch.no_grad():
            expected = self._net(torch.from_numpy(x)).numpy()
        found = np.array(output["data"], dtype=np.float32).reshape(output["shape"])
        assert np.allclose(found, expected, atol=1e-5), (found, expected)
        return "answered"


def kill_in_turn(agents, names, stop):
    """One agent every two seconds, of those that are there; each is started again. How many."""
    until_s, n_kills = time.monotonic() + SOAK_S, 0
    with ThreadPoolExecutor(len(names)) as pool:
        under_way = {}
        while time.monotonic() < until_s:
            for restart in [each for each in under_way.values() if each.done()]:
                restart.result()
            alive = [name for name in names if name not in under_way or under_way[name].done()]
            if alive:
                lost = alive[n_kills % len(alive)]
                agents.kill(lost)
                under_way[lost] = pool.submit(agents.restart, lost)
                n_kills += 1
            stop.wait(EVERY_S)
        for restart in under_way.values():
            restart.result()
    return n_kills


@pytest.mark.long
@pytest.mark.timeout(SOAK_S + 6 * TIMEOUT_S)
def test_agents_are_killed_for_minutes_and_each_request_ends_once(record_property):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = potluck.Model.from_torch(net, torch.randn(6, 8))
    stop = threading.Event()
    with potluck.Home.local(3) as home:
        agents, names = agents_of(home), list(home.devices)
        service = home.serve(model, "birds", slo=potluck.Latency(20.0)).wait()
        with home.gateway() as gateway:
            clients = [Client(gateway.port, net, number, stop) for number in range(N_CLIENTS)]
            for client in clients:
                client.start()
            n_kills = kill_in_turn(agents, names, stop)
            stop.set()
            for client in clients:
                client.join(TIMEOUT_S)
            assert not any(client.is_alive() for client in clients)  # nobody waits for ever
        ends = sum((client.ends for client in clients), Counter())
        wrong = [text for client in clients for text in client.wrong]
        stats = service.stats
        record_property("faults", n_kills)
        record_property("ends", f"{dict(ends)}, {stats}")
        assert wrong == []
        assert ends["answered"] > 0
        assert stats.n_answered == ends["answered"]
        assert stats.n_refused + stats.n_failed == ends["refused"]
        assert stats.n_asked == ends.total()
        lively = None
        for _ in range(int(TIMEOUT_S)):  # and the home is whole again
            try:
                lively = service(torch.zeros(1, 8))
                break
            except PotluckError:
                stop.clear()
                stop.wait(1.0)
        with torch.no_grad():
            assert torch.allclose(lively, net(torch.zeros(1, 8)), atol=1e-5)
