"""Devices of a home that serves die, come back and leave: every request is answered or refused
once, and what is answered is right.
"""

import copy
import threading
from concurrent.futures import wait

import pytest
from tests.sdk.serve.runtime.conftest import LONG_S
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import NotServed, PotluckError
from potluck.serve.runtime import serving
from potluck.serve.runtime.device_placement import place_all
from potluck.serve.runtime.measure import MeasuredService
from potluck.serve.scheduling.records import BatchTimes
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
ROUNDS = 4


def settled(futures, net, x):
    """Each has ended; how many were answered, rightly."""
    done, unfinished = wait(futures, TIMEOUT_S)
    assert not unfinished
    with torch.no_grad():
        expected = net(x)
    n_answered = 0
    for future in done:
        if (error := future.exception()) is None:
            assert torch.allclose(future.result(), expected, atol=1e-6)
            n_answered += 1
        else:
            assert isinstance(error, PotluckError)
    return n_answered


def until_back(home, service, names):
    """Until these devices have it."""
    never_set = threading.Event()
    for _ in range(int(TIMEOUT_S * 10)):
        if set(service.devices) == set(names):
            return
        memory_of(home).pass_time(0.5)
        never_set.wait(0.1)
    raise AssertionError(f"only {sorted(service.devices)} have it")


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "kill_worker", "pull"])
def test_requests_of_a_device_that_is_lost_are_answered_by_the_other(model, net, how):
    with memory_home(2) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        x = torch.randn(1, 8)
        futures = [service.ask(x) for _ in range(40)]
        getattr(memory_of(home), how)("local-1")
        futures += [service.ask(x) for _ in range(40)]
        assert settled(futures, net, x) == 80
        stats = service.stats
        assert (stats.n_answered, stats.n_asked, stats.n_refused) == (80, 80, 0)


@pytest.mark.long
def test_agents_are_killed_one_after_the_other_and_each_request_ends_once(model, net):
    with memory_home(3) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        x, futures = torch.randn(1, 8), []
        names = [f"local-{i}" for i in (1, 2, 3)]
        for round_ in range(ROUNDS):
            lost = names[round_ % 3]
            futures += [service.ask(x) for _ in range(20)]
            memory_of(home).kill(lost)
            futures += [service.ask(x) for _ in range(20)]
            assert settled(futures, net, x) > 0
            memory_of(home).restart(lost)
            until_back(home, service, names)
        stats = service.stats
        assert stats.n_asked == len(futures) == 40 * ROUNDS
        assert stats.n_answered + stats.n_refused + stats.n_failed == stats.n_asked
        assert stats.n_answered >= 39 * ROUNDS


@pytest.mark.long
def test_nobody_is_left_and_somebody_comes_back(model, net):
    with memory_home(1) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        x = torch.randn(1, 8)
        memory_of(home).kill("local-1")
        futures = [service.ask(x) for _ in range(10)]
        assert settled(futures, net, x) == 0
        with pytest.raises(NotServed):
            service(x)
        memory_of(home).restart("local-1")
        until_back(home, service, ["local-1"])
        assert settled([service.ask(x)], net, x) == 1


@pytest.mark.parametrize(
    "slo",
    [potluck.Latency(LONG_S), potluck.Frequency(fps=2, tolerance_s=LONG_S)],
    ids=["requests", "streams"],
)
def test_where_no_device_is_left_it_is_said_so(model, slo):
    with memory_home(1) as home:
        service = home.serve(model, "birds", slo=slo).wait()
        memory_of(home).kill("local-1")
        until_back(home, service, [])
        asks = [lambda: service(torch.randn(1, 8))]
        if isinstance(slo, potluck.Frequency):
            asks.append(lambda: list(service.stream([torch.randn(1, 8)])))
        for ask in asks:
            with pytest.raises(NotServed, match="no device that has it is left"):
                ask()


def test_a_device_that_wants_to_leave_is_drained(model, net):
    with memory_home(2) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        x = torch.randn(1, 8)
        futures = [service.ask(x) for _ in range(30)]
        memory_of(home).leave("local-2", "the battery is low")
        futures += [service.ask(x) for _ in range(30)]
        until_back(home, service, ["local-1"])
        futures += [service.ask(x) for _ in range(30)]
        assert settled(futures, net, x) == 90
        assert service.stats.n_again == 0


@pytest.mark.parametrize("n_devices", [2, 1])
def test_what_only_a_device_has_that_leaves_is_answered_where_it_goes(
    model, net, monkeypatch, n_devices
):
    monkeypatch.setattr(serving, "place_all", on_the_first)
    with memory_home(n_devices) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        (first,) = service.devices
        memory_of(home).leave(first, "the battery is low")
        x = torch.randn(1, 8)
        futures = [service.ask(x) for _ in range(20)]
        assert settled(futures, net, x) == (20 if n_devices > 1 else 0)
        assert first not in service.devices


def on_the_first(wanted, measured, memory, *given):
    """All services on the first of the devices that stay."""
    return place_all(wanted, measured, dict(list(memory.items())[:1]), *given)


@pytest.mark.long
@pytest.mark.parametrize("shares", [None, (1, 1)], ids=["whole", "divided by tensor"])
def test_a_device_that_is_back_answers_by_the_values_that_the_others_have(shares):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    ).eval()
    model = potluck.Model.from_torch(net, torch.randn(6, 8))
    model = model if shares is None else model.divided(shares)
    with memory_home(2) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        before, x = copy.deepcopy(net), torch.randn(1, 8)
        with torch.no_grad():
            net[1].running_mean.add_(1.0)
            net[3].weight.mul_(3.0)
        memory_of(home).kill("local-1")
        assert settled([service.ask(x)], before, x) == 1
        memory_of(home).restart("local-1")
        until_back(home, service, ["local-1", "local-2"])
        futures = [service.ask(x) for _ in range(40)]
        assert settled(futures, before, x) == 40


def larger_batches_on_a(load, model, limit_s, clock):
    """As if larger batches paid on the device `a` alone."""
    loaded = load(1)
    loaded.close()
    items = (1, 2, 8) if loaded.devices == ("a",) else (1, 2)
    times = BatchTimes(items=items, seconds=(0.1, 0.11, 0.12)[: len(items)])
    return MeasuredService(alone=times, in_pairs=times, memory_bytes=8 * 2**20, item_bytes=0)


def test_one_that_fills_the_last_device_goes_on_there(monkeypatch):
    monkeypatch.setattr(serving, "measure", larger_batches_on_a)
    wide = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024))
    model = potluck.Model.from_torch(wide, torch.randn(2, 1024), name="wide")
    specs = [Spec(name=name, memory="14 MiB") for name in ("a", "b")]  # its weights are 8 MiB
    with memory_home(specs) as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()
        assert service.devices == {"a": 2, "b": 2}
        memory_of(home).kill("b")
        x = torch.randn(1, 1024)
        assert settled([service.ask(x) for _ in range(10)], wide, x) == 10
        until_back(home, service, ["a"])
        assert settled([service.ask(x)], wide, x) == 1


def faster_on_a(load, model, limit_s, clock):
    """As if the device `a` were ten times as fast."""
    loaded = load(1)
    loaded.close()
    times = BatchTimes(items=(1,), seconds=(1.0 if loaded.devices == ("a",) else 10.0,))
    return MeasuredService(alone=times, in_pairs=times, memory_bytes=2**20, item_bytes=0)


def test_one_whose_limit_no_device_holds_any_more_ends_no_other(model, net, monkeypatch):
    monkeypatch.setattr(serving, "measure", faster_on_a)
    with memory_home([Spec(name="a"), Spec(name="b")]) as home:
        tight = home.serve(model, "tight", slo=potluck.Latency(5.0)).wait()
        loose = home.serve(model, "loose", slo=potluck.Latency(LONG_S)).wait()
        memory_of(home).kill("a")
        until_back(home, tight, [])
        until_back(home, loose, ["b"])
        other = home.serve(model, "other", slo=potluck.Latency(LONG_S)).wait()
        x = torch.randn(1, 8)
        assert settled([loose.ask(x), other.ask(x)], net, x) == 2
        memory_of(home).restart("a")
        until_back(home, tight, ["a"])
