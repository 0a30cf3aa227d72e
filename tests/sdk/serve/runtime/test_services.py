"""Services of a home in memory: many callers, batches, several services, streams, refusals."""

import re
from concurrent.futures import wait
from itertools import count

import pytest
from tests.sdk.serve.runtime.conftest import LONG_S, standing_still
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.display import views
from potluck.errors import DeviceGone, Infeasible, ModelError, NotServed, RequestFailed, UserError
from potluck.serve.runtime import serving
from potluck.serve.runtime.device_placement import place_all
from potluck.serve.runtime.measure import measure
from potluck.serve.stats import TOO_MANY_ROWS
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")


def of_net(net, x):
    with torch.no_grad():
        return net(x)


@pytest.mark.long
def test_answers_any_number_of_rows_as_one_machine(birds, net):
    for rows in (1, 2, 3, 17, 200):
        x = torch.randn(rows, 8)
        assert torch.allclose(birds(x), of_net(net, x), atol=1e-6)
    assert birds.stats.n_answered == 5


@pytest.mark.long
def test_what_was_asked_may_be_overwritten_at_once(birds, net):
    x = torch.empty(2, 8)
    futures = []
    expected = []
    for _ in range(20):
        x.normal_()
        expected.append(of_net(net, x))
        futures.append(birds.ask(x))
    for answer, each in zip(futures, expected, strict=True):
        assert torch.allclose(answer.result(TIMEOUT_S), each, atol=1e-6)


@pytest.mark.long
def test_rows_of_many_callers_are_joined_and_answered_apart(own_home, model, net, monkeypatch):
    """Many have come before the first is answered, and a batch takes as long as one row."""
    looks_s = (1e-3 * i for i in count())
    even = lambda load, model, limit_s, _: measure(load, model, limit_s, looks_s.__next__)  # noqa: E731
    monkeypatch.setattr(serving, "measure", even)
    xs = [torch.randn(1 + i % 3, 8) for i in range(120)]
    with own_home.serve(model, name="birds", slo=potluck.Latency(LONG_S)).wait() as birds:
        with standing_still(own_home):
            requests = [birds.request(x) for x in xs]
        for x, each in zip(xs, requests, strict=True):
            assert torch.allclose(each.future.result(), of_net(net, x), atol=1e-6)
        # each device begins with who came first; all others have come when it is done with that
        assert all(each.n_together > 100 for each in requests[len(birds.devices) :])
        assert birds.stats.n_answered == 120
        assert set(birds.stats.by_device) <= set(birds.devices)


@pytest.mark.long
def test_several_services_run_side_by_side(own_home, model, net):
    names = ("a", "b", "c")
    served = [own_home.serve(model, n, slo=potluck.Latency(LONG_S)).wait() for n in names]
    assert set(own_home.services) == set(names)
    x = torch.randn(5, 8)
    futures = [service.ask(x) for _ in range(10) for service in served]
    assert all(torch.allclose(f.result(), of_net(net, x), atol=1e-6) for f in futures)
    served[0].close()
    assert set(own_home.services) == {"b", "c"}
    assert torch.allclose(served[1](x), of_net(net, x), atol=1e-6)
    for service in served[1:]:
        service.close()
    assert not own_home.services


@pytest.mark.long
def test_a_stream_is_answered_in_order(own_home, model, net):
    x = torch.randn(60, 8)
    slo = potluck.Frequency(fps=2, tolerance_s=LONG_S)
    with own_home.serve(model, "camera", slo=slo).wait() as service:
        answers = list(service.stream(x[i : i + 1] for i in range(60)))
    assert torch.allclose(torch.cat(answers), of_net(net, x), atol=1e-6)


@pytest.mark.long
def test_a_stream_that_is_forgotten_leaves_its_part_to_the_next_one(own_home, model):
    """Whether its first answer was taken or not."""
    frames = [torch.randn(1, 8)] * 3
    slo = potluck.Frequency(fps=2, tolerance_s=LONG_S)
    with own_home.serve(model, "camera", slo=slo).wait() as service:
        for n_taken in (0, 1, 0, 1):
            held = []
            with pytest.raises(NotServed, match="other streams take all"):
                held.extend(iter(lambda: service.stream(frames, fps=1e9), None))
            assert held
            assert all(next(stream).shape == (1, 4) for stream in held[:n_taken])
            held.clear()


@pytest.mark.long
def test_who_cancels_a_request_takes_no_answer_of_the_others(birds, net):
    x = torch.randn(40, 8)
    pending = [birds.ask(x[i : i + 1]) for i in range(40)]
    for each in pending[::2]:
        each.cancel()
    answers = torch.cat([each.result(timeout=LONG_S) for each in pending[1::2]])
    assert torch.allclose(answers, of_net(net, x)[1::2], atol=1e-6)


def test_a_limit_that_no_device_holds_is_refused_with_the_best_possible(own_home, model):
    with pytest.raises(
        Infeasible, match=r"takes .* s on .* at best, its limit is 1e-07 s"
    ) as caught:
        own_home.serve(model, "birds", slo=potluck.Latency(1e-7)).wait()
    assert caught.value.facts["best_s"] > 1e-7
    assert not own_home.services
    said = re.search(r"Allow (\S+) s", str(caught.value))
    assert said is not None
    own_home.serve(model, "birds", slo=potluck.Latency(float(said[1]))).wait().close()


@pytest.mark.long
def test_what_cannot_be_answered_in_time_is_refused_at_once(birds):
    with pytest.raises(NotServed, match=r"birds: .*limit is 1e-09 s") as caught:
        birds.request(torch.randn(1, 8), limit_s=1e-9).future.result()
    assert caught.value.facts["soonest_s"] > 1e-9
    assert birds.stats.n_refused == 1


@pytest.mark.long
def test_a_full_queue_refuses_at_once_and_every_request_ends_once(own_home, model, net):
    slo = potluck.Latency(LONG_S)
    with own_home.serve(model, "birds", slo=slo, max_queue=4).wait() as service:
        with pytest.raises(NotServed, match="its queue takes 4 rows, not 5"):
            service(torch.randn(5, 8))
        x = torch.randn(1, 8)
        futures = [service.ask(x) for _ in range(400)]
        wait(futures)
        failed = [f.exception() for f in futures if f.exception() is not None]
        assert all(isinstance(error, NotServed) for error in failed)
        assert len(failed) > 0
        answers = [f.result() for f in futures if f.exception() is None]
        assert all(torch.allclose(y, of_net(net, x), atol=1e-6) for y in answers)
        stats = service.stats
        assert stats.n_answered + stats.n_refused == stats.n_asked == 401
        assert stats.n_under_way == 0


def test_reasons_are_few_and_who_can_never_be_served_is_not_told_to_ask_again(model):
    slo, told = potluck.Latency(LONG_S), []
    with memory_home(1) as home:
        service = home.serve(model, "birds", slo=slo, max_queue=4).wait()
        for n in range(5, 25):
            error = service.ask(torch.zeros(n, 8)).exception()
            assert isinstance(error, NotServed)
            told.append(str(error))
        assert dict(service.stats.refused) == {TOO_MANY_ROWS: 20}
        service.close()
        told.append(str(service.ask(torch.zeros(1, 8)).exception()))
    assert not [text for text in told if "Ask again" in text]


@pytest.mark.long
def test_one_whose_values_fail_does_not_fail_its_neighbours(own_home):
    table = torch.nn.Embedding(4, 3)

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, x):
            return self.table(x.cumsum(1)).sum(1)

    model = potluck.Model.from_torch(Sums(), torch.zeros(4, 2, dtype=torch.int64))
    with own_home.serve(model, "sums", slo=potluck.Latency(LONG_S)).wait() as service:
        good, bad = torch.tensor([[1, 1]]), torch.tensor([[3, 3]])
        futures = [service.ask(bad if i % 5 == 2 else good) for i in range(40)]
        wait(futures)
        for i, future in enumerate(futures):
            if i % 5 == 2:
                assert isinstance(future.exception(), RequestFailed)
            else:
                expected = table(torch.tensor([[1, 2]])).sum(1)
                assert torch.allclose(future.result(), expected)
        assert service.stats.n_failed == 8


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((torch.zeros(1, 7),), ModelError),
        ((torch.zeros(1, 8, dtype=torch.int64),), ModelError),
        ((), ModelError),
        ((torch.zeros(0, 8),), UserError),
    ],
)
def test_wrong_inputs_are_refused_before_they_are_queued(birds, given, error):
    with pytest.raises(error):
        birds(*given)
    assert birds.stats.n_asked == 0


@pytest.mark.parametrize(
    ("wrong", "caught"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"name": "../x"}, "letters, digits"),
        ({"slo": 0.2}, "a limit is"),
        ({"priority": 0.5}, "priority is a whole number"),
        ({"max_queue": 0}, "max_queue"),
        ({"per_s": float("nan")}, "per_s"),
    ],
)
def test_wrong_settings_are_refused_by_name(own_home, model, wrong, caught):
    with pytest.raises(UserError, match=caught):
        own_home.serve(model, **{"name": "birds", "slo": potluck.Latency(1), **wrong})


@pytest.mark.long
def test_a_name_is_used_once(own_home, birds, model):
    with pytest.raises(UserError, match="called 'birds' already"):
        own_home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
    assert birds(torch.zeros(1, 8)).shape == (1, 4)


@pytest.mark.long
def test_a_service_that_is_closed_refuses(own_home, model):
    service = own_home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
    service.close()
    service.close()
    with pytest.raises(NotServed, match="closed"):
        service(torch.zeros(1, 8))


def test_one_that_has_the_name_of_an_earlier_one_counts_from_nothing(own_home, model):
    for _ in range(2):
        with own_home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait() as service:
            service(torch.zeros(1, 8))
            assert service.stats.n_asked == 1


def test_what_a_closed_one_has_done_stays_told_when_another_one_has_its_name(own_home, model):
    slo = potluck.Latency(LONG_S)
    closed = own_home.serve(model, "birds", slo=slo).wait()
    closed(torch.zeros(3, 8))
    done = closed.stats
    closed.close()
    assert closed.stats == done
    new = own_home.serve(model, "birds", slo=slo).wait()
    for _ in range(2):
        new(torch.zeros(1, 8))
    assert (closed.stats, done.n_answered) == (done, 1)
    assert own_home.services["birds"].stats == new.stats


LIMITS = [-1.0, float("nan"), float("inf"), True, "2"]


@pytest.mark.few(2)
@pytest.mark.parametrize("limit_s", LIMITS)
def test_a_limit_of_ones_own_is_a_number_of_seconds(birds, limit_s):
    for ask in (birds.request, birds.at(next(iter(birds.devices))).ask):
        with pytest.raises(UserError, match="limit_s must be a finite number, zero or more"):
            ask(torch.zeros(1, 8), limit_s=limit_s)
    assert birds.stats.n_asked == 0


def test_no_time_at_all_is_refused_by_the_service_and_by_its_devices(birds):
    x, entrance = torch.zeros(1, 8), birds.at(next(iter(birds.devices)))
    for asked in (birds.request(x, limit_s=0.0).future, entrance.ask(x, limit_s=0)):
        with pytest.raises(NotServed):
            asked.result(LONG_S)


def test_what_is_closed_stays_closed_when_another_one_has_its_name(own_home, model):
    x, slo = torch.randn(1, 8), potluck.Frequency(fps=5, tolerance_s=LONG_S)
    closed = own_home.serve(model, "birds", slo=slo).wait()
    entrance = closed.at("local-1")
    closed.close()
    other = torch.nn.Linear(8, 4)
    new_model = potluck.Model.from_torch(other, torch.randn(2, 8))
    new = own_home.serve(new_model, "birds", slo=slo).wait()
    asks = [lambda: closed(x), lambda: closed.stream([x]), lambda: entrance(x)]
    for ask in asks:
        with pytest.raises(NotServed, match="closed"):
            ask()
    assert (closed.is_open, closed.devices, closed.expected_s) == (False, {}, None)
    closed.close()
    assert torch.allclose(new(x), of_net(other, x), atol=1e-6)
    assert new.stats.n_asked == 1


@pytest.mark.parametrize("fps", [0, -1.0, float("nan"), float("inf"), True, "30"])
def test_frames_per_second_are_a_number_above_zero(own_home, model, fps):
    slo = potluck.Frequency(fps=5, tolerance_s=LONG_S)
    with own_home.serve(model, "door", slo=slo).wait() as door:
        for asked in (door, door.at(next(iter(door.devices)))):
            with pytest.raises(UserError, match="fps must be a finite number, above zero"):
                asked.stream([torch.zeros(1, 8)], fps)


def test_one_that_is_not_placed_yet_is_none_of_the_services(own_home, birds, model, monkeypatch):
    shown = []

    def looked_at(*given):
        services = own_home.services
        shown.append(({*services}, repr(services), [each.stats for each in services.values()]))
        return place_all(*given)

    monkeypatch.setattr(serving, "place_all", looked_at)
    own_home.serve(model, "other", slo=potluck.Latency(LONG_S)).wait()
    assert shown[0][0] == {"birds"}
    assert {*own_home.services} == {"birds", "other"}


def test_a_placement_that_is_given_up_leaves_nothing_on_the_devices(own_home, model, monkeypatch):
    loaded = []

    class Loaded(serving.Loaded):
        """The second one is not loaded: its device goes."""

        def __init__(self, *given):
            loaded.append(self)
            self.is_lost = len(loaded) == 2
            if self.is_lost:
                raise DeviceGone("it went.", device="local-2")
            super().__init__(*given)

    def placed(*given):
        monkeypatch.setattr(serving, "Loaded", Loaded)  # all is measured
        return place_all(*given)

    monkeypatch.setattr(serving, "place_all", placed)
    service = own_home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
    assert {*service.devices} == {"local-1", "local-2"}
    held = [each.devices for each in loaded if not each.is_lost]
    assert sorted(held) == [("local-1",), ("local-2",)]


@pytest.mark.long
def test_only_a_frequency_service_takes_streams(birds):
    with pytest.raises(UserError, match="single requests"):
        birds.stream([torch.zeros(1, 8)])


@pytest.mark.long
def test_a_home_shows_its_services_by_who_has_them_and_what_became_of_requests(own_home, model):
    assert "Services" in repr(own_home.services)
    slo = potluck.Latency(120.0)
    with own_home.serve(model, "birds", slo=slo, max_queue=4).wait() as birds:
        birds(torch.zeros(1, 8))
        with pytest.raises(NotServed):
            birds(torch.zeros(5, 8))
        shown = repr(own_home.services)
        assert "birds" in shown
        assert TOO_MANY_ROWS in shown
        for device, rows in birds.devices.items():
            assert f"{device} ({rows})" in shown
        assert 'id="potluck-services-' in views.as_html(own_home.services)
        assert 'id="potluck-service-' in views.as_html(birds)
    assert "birds" in views.as_html(birds)
