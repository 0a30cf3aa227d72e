"""Models follow the load: a device changes to the service that is asked for, and no request is lost
meanwhile.
"""

import threading
import time

import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.serve.runtime import serving
from potluck.serve.runtime.dispatch import Dispatch
from potluck.serve.runtime.measure import MeasuredService
from potluck.serve.scheduling import load_watch
from potluck.serve.scheduling.records import BatchTimes
from potluck.sessions.agent_specs import Spec
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
MIB = 2**20
LONG_S = 1000.0


def as_if(load, model, limit_s, clock):
    """A model that fills a device, and does a request in a second."""
    times = BatchTimes(items=(1, 2), seconds=(1.0, 2.0))
    return MeasuredService(alone=times, in_pairs=times, memory_bytes=150 * MIB, item_bytes=0)


@pytest.fixture
def crowded(monkeypatch):
    """Three devices with room for one service each."""
    monkeypatch.setattr(serving, "measure", as_if)
    monkeypatch.setattr(load_watch, "WINDOW_S", 1.0)
    torch.set_num_threads(1)
    with memory_home([Spec(name=name, memory="256 MiB") for name in ("a", "b", "c")]) as home:
        yield home


@pytest.mark.parametrize("hot", ["birds", "words"])
def test_who_is_asked_for_gets_the_devices_and_every_request_is_answered(crowded, model, net, hot):
    names = ("birds", "words")
    served = {n: crowded.serve(model, n, slo=potluck.Latency(LONG_S)).wait() for n in names}
    assert sum(len(service.devices) for service in served.values()) == 3
    x, futures = torch.randn(1, 8), []
    ended_s = time.monotonic() + TIMEOUT_S
    waiting = threading.Event()
    while len(served[hot].devices) < 2 or not futures:
        assert time.monotonic() < ended_s, {n: s.devices for n, s in served.items()}
        futures += [served[hot].ask(x) for _ in range(20)]
        waiting.wait(0.1)
    other = next(service for name, service in served.items() if name != hot)
    assert len(other.devices) >= 1  # nobody is left out
    with torch.no_grad():
        expected = net(x)
    futures.append(other.ask(x))
    assert all(torch.allclose(f.result(TIMEOUT_S), expected, atol=1e-6) for f in futures)
    assert served[hot].stats.n_refused == 0


def test_models_still_follow_the_load_after_a_service_ended_while_it_was_looked_at(
    own_home, model, monkeypatch
):
    services = [own_home.serve(model, n, slo=potluck.Latency(LONG_S)).wait() for n in ("a", "b")]
    looked_again, stats = threading.Event(), Dispatch.stats

    def ended_meanwhile(self, name):
        if threading.current_thread().name == "potluck placing":
            if services[1].is_open:
                services[1].close()
            elif name == "a":
                looked_again.set()
        return stats(self, name)

    monkeypatch.setattr(Dispatch, "stats", ended_meanwhile)
    assert looked_again.wait(TIMEOUT_S)
