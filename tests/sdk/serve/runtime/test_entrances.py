"""Devices of a home as entrances of its services: they answer and hand on by themselves."""

import threading
from concurrent.futures import Future, wait
from itertools import count
from types import SimpleNamespace

import pytest
from tests.sdk.serve.runtime.conftest import standing_still
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import NotServed, ProtocolError, RequestFailed, UserError, WorkerFailed
from potluck.serve.runtime import serving
from potluck.serve.runtime.entrances import AskedRows
from potluck.serve.runtime.measure import measure
from potluck.serve.scheduling.records import BatchTimes
from potluck.sessions.events import ServiceAnswer
from potluck.sessions.failures import not_answered
from potluck.testing.faults import memory_of
from potluck.testing.internals import serving_of
from potluck.testing.memory import memory_home
from potluck_wire.messages import AskEnded, FailureCause, RefusalCode

torch = pytest.importorskip("torch")
LIMIT_S = 20.0


@pytest.fixture
def birds(own_home, model):
    with own_home.serve(model, name="birds", slo=potluck.Latency(LIMIT_S)).wait() as service:
        yield service


def of_net(net, x):
    with torch.no_grad():
        return net(x)


@pytest.mark.long
def test_every_device_that_has_it_answers_as_one_machine(birds, net):
    for device in birds.devices:
        x = torch.randn(1, 8)
        answer = birds.at(device).ask(x).result(TIMEOUT_S)
        assert torch.allclose(answer.value, of_net(net, x), atol=1e-6)
        assert answer.path[0] == device
        assert len(answer.hops_s) == len(answer.path)


@pytest.mark.long
def test_many_at_once_are_answered_rightly_and_tell_who_had_them(birds, net):
    xs = [torch.randn(1, 8) for _ in range(60)]
    entrance = birds.at("local-1")
    requests = [entrance.ask(x) for x in xs]
    assert not wait(requests, TIMEOUT_S).not_done
    answered = 0
    for x, each in zip(xs, requests, strict=True):
        if each.exception() is None:
            assert torch.allclose(each.result().value, of_net(net, x), atol=1e-6)
            answered += 1
        else:
            assert isinstance(each.exception(), NotServed)
    assert answered


@pytest.mark.parametrize(("path", "error"), [(("a",), ProtocolError), (("a", "b"), NotServed)])
def test_who_handed_a_request_on_is_not_blamed_alone_for_what_is_no_answer(path, error):
    """It passes an answer on without its type: its model would be taken for lost."""

    def outputs(raws, types, wanted):
        raise ProtocolError("it sent int8 of [16].", device="a")

    program = SimpleNamespace(parts=("whole",), outputs=outputs)
    answer = Future()
    answer.set_result(ServiceAnswer(outputs={}, path=path, hops_s=(0.1,) * len(path)))
    asked = AskedRows(program, {}, 1, answer, ["a", "b"])
    with pytest.raises(error, match="int8") as raised:
        asked.wait()
    assert all(device in str(raised.value) for device in path)


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (FailureCause.CANCELLED, NotServed),
        (RefusalCode.UNKNOWN_RUN, NotServed),
        (RefusalCode.NOT_GRANTED, NotServed),
        (FailureCause.CRASHED, WorkerFailed),
        (FailureCause.INPUT, RequestFailed),
    ],
)
def test_who_asks_a_device_is_refused_where_its_model_was_placed_anew(cause, error):
    """As it hears it of the device itself."""
    answer = Future()
    answer.set_exception(not_answered("a", AskEnded(code=cause, text="why", path=("a",))))
    with pytest.raises(error) as raised:
        AskedRows(None, {}, 1, answer, ["a"]).routed(list)
    assert type(raised.value) is error


def uneven(monkeypatch, *steps_s):
    """Of each device that is measured, a batch seems to take so long."""
    steps = iter(steps_s)

    def measured(load, model, limit_s, _):
        step_s = next(steps)
        looks_s = (step_s * i for i in count())
        return measure(load, model, limit_s, looks_s.__next__)

    monkeypatch.setattr(serving, "measure", measured)


PAUSES = {
    "own_home": lambda home: memory_of(home).pass_time(1.0),
    "process_home": lambda home: threading.Event().wait(0.1),
}


@pytest.mark.long
@pytest.mark.parametrize("where", PAUSES)
def test_a_device_without_time_hands_on_and_the_answer_tells_the_way(
    where, request, model, net, monkeypatch
):
    """One is measured as slow as ten limits. In memory, and between processes."""
    home = request.getfixturevalue(where)
    uneven(monkeypatch, 1.0, 1e-4)
    with home.serve(model, "birds", slo=potluck.Latency(LIMIT_S)).wait() as birds:
        assert set(birds.devices) == {"local-1", "local-2"}
        x = torch.randn(1, 8)
        answer = handed_on(birds.at("local-1"), x, lambda: PAUSES[where](home))
        assert torch.allclose(answer.value, of_net(net, x), atol=1e-6)
        first_s, second_s = answer.hops_s
        assert first_s >= second_s >= 0


def handed_on(entrance, x, pause):
    """The answer, as soon as the entrance has heard how the other one stands."""
    for _ in range(int(TIMEOUT_S * 10)):
        try:
            answer = entrance.ask(x, limit_s=0.5).result(TIMEOUT_S)
        except NotServed:
            pause()
        else:
            assert answer.path == ("local-1", "local-2")
            return answer
    raise AssertionError("nobody hands on")


@pytest.mark.long
def test_an_entrance_takes_as_many_rows_as_its_device_at_once(birds, net):
    for device, most in birds.devices.items():
        entrance = birds.at(device)
        for rows in {1, 3, most}:
            x = torch.randn(rows, 8)
            assert torch.allclose(entrance(x), of_net(net, x), atol=1e-6)
        with pytest.raises(UserError, match=f"takes {most} row"):
            entrance(torch.randn(most + 1, 8))
        with pytest.raises(UserError, match="one row or more"):
            entrance(torch.randn(0, 8))


def test_what_was_asked_may_be_overwritten_at_once(birds, own_home, net):
    x = torch.empty(1, 8)
    expected, asked = [], []
    with standing_still(own_home):
        for _ in range(5):
            x.normal_()
            expected.append(of_net(net, x))
            asked.append(birds.at("local-1").ask(x))
    for each, answer in zip(asked, expected, strict=True):
        assert torch.allclose(each.result(TIMEOUT_S).value, answer, atol=1e-6)


@pytest.mark.long
def test_frames_are_answered_in_order_by_slow_and_fast_devices_and_those_dropped_are_said(
    own_home, model, net, monkeypatch
):
    """The entrance takes two at once by what was measured, and the way to the other is long."""
    uneven(monkeypatch, 8.0, 1e-4)
    frames, ways = [torch.randn(1, 8) for _ in range(40)], []
    slo = potluck.Frequency(fps=0.5, tolerance_s=LIMIT_S)
    with own_home.serve(model, "camera", slo=slo).wait() as camera:
        entrance, memory = camera.at("local-1"), memory_of(own_home)
        handed_on(entrance, frames[0], lambda: memory.pass_time(1.0))
        memory.delay("local-2", 0.05)
        for happens in (lambda: None, lambda: memory.kill("local-2")):
            happens()
            answers = list(entrance.stream(frames))
            assert len(answers) == len(frames)
            for x, each in zip(frames, answers, strict=True):
                assert each is None or torch.allclose(each.value, of_net(net, x), atol=1e-6)
            ways.append({each and each.path for each in answers})
    assert ways[0] >= {("local-1",), ("local-1", "local-2")}
    assert ways[1] == {("local-1",), None}


@pytest.mark.long
def test_only_a_frequency_service_takes_streams_at_an_entrance(birds):
    with pytest.raises(UserError, match="single requests"):
        birds.at("local-1").stream([torch.zeros(1, 8)])


def test_batches_larger_than_was_measured_are_not_granted_and_are_answered(birds, own_home, net):
    """As where a device keeps what it has loaded, beside others that were measured with less."""
    serving = serving_of(own_home)
    placed = [
        (loaded, BatchTimes(items=(1,), seconds=(1e-3,)))
        for held in serving.dispatch.pools()
        for loaded in held.loaded
    ]
    serving.entrances.grant("birds", LIMIT_S, placed)
    for device, most in birds.devices.items():
        assert most > 1
        with pytest.raises(UserError, match="takes 1 row at once"):
            birds.at(device).ask(torch.randn(2, 8))
    for rows in (1, 2, 3, 40):
        x = torch.randn(rows, 8)
        assert torch.allclose(birds(x), of_net(net, x), atol=1e-6)


@pytest.mark.long
def test_who_has_it_not_is_no_entrance(birds):
    with pytest.raises(NotServed, match="no entrance"):
        birds.at("nobody")


@pytest.mark.long
def test_nobody_is_an_entrance_of_what_has_ended(own_home, model):
    service = own_home.serve(model, name="birds", slo=potluck.Latency(LIMIT_S)).wait()
    entrance = service.at("local-1")
    service.close()
    with pytest.raises(NotServed):
        entrance.ask(torch.randn(1, 8))


@pytest.mark.long
def test_a_device_that_went_is_handed_nothing_and_the_other_answers(model, net):
    with memory_home(2) as home:
        service = home.serve(model, "birds", slo=potluck.Latency(LIMIT_S)).wait()
        memory_of(home).kill("local-2")
        x = torch.randn(1, 8)
        answer = service.at("local-1").ask(x).result(TIMEOUT_S)
        assert answer.path == ("local-1",)
        assert torch.allclose(answer.value, of_net(net, x), atol=1e-6)
