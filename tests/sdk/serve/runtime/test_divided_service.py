"""A model that no device can hold alone is served by several, as one machine would answer."""

import pytest
from tests.sdk.serve.runtime.conftest import LONG_S
from tests.sdk.serve.runtime.test_devices_go import settled, until_back

import potluck
from potluck.errors import NotServed, PlanError, PotluckError
from potluck.serve.runtime import entrances, serving
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
WIDTH, DEPTH = 1024, 8  # of a layer, its weights are 4 MiB: 32 in all
FEW, MANY = "30 MiB", "128 MiB"


@pytest.fixture(scope="module")
def wide():
    torch.manual_seed(0)
    layers = []
    for _ in range(DEPTH):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers)
    return net, potluck.Model.from_torch(net, torch.randn(2, WIDTH), name="wide")


def home_of(**memory):
    return memory_home([Spec(name=name, memory=much) for name, much in memory.items()])


def test_it_runs_on_several_devices_and_answers_as_one_machine(wide):
    net, model = wide
    with home_of(a=FEW, b=FEW) as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()
        assert set(service.devices) == {"a", "b"}
        for rows in (1, 3, 8):
            x = torch.randn(rows, WIDTH)
            with torch.no_grad():
                assert torch.allclose(service(x), net(x), atol=1e-6)
        assert set(service.stats.by_device) == {"a", "b"}


def two_outputs():
    """A network whose early layers answer, too, and whose second input is read late."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

        def forward(self, x, late):
            outputs = []
            for layer in self.layers:
                x = torch.tanh(layer(x))
                outputs.append(x[:, :4])
            return {"last": x * late, "second": outputs[1]}

    torch.manual_seed(0)
    net = Net()
    inputs = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    return net, potluck.Model.from_torch(net, inputs, name="two")


@pytest.mark.parametrize("memory", [FEW, "22 MiB"])
def test_the_first_of_them_is_an_entrance_and_asks_the_others(wide, memory):
    net, model = wide
    with home_of(a=memory, b=memory, c=memory) as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()
        first, *others = service.devices
        for rows in (1, service.devices[first]):  # the most that it takes at once
            x = torch.randn(rows, WIDTH)
            answer = service.at(first).ask(x).result()
            assert answer.path == tuple(service.devices)
            assert len(answer.hops_s) == len(answer.path)
            with torch.no_grad():
                assert torch.allclose(answer.value, net(x), atol=1e-6)
        for other in others:
            with pytest.raises(NotServed, match="no entrance"):
                service.at(other)
        memory_of(home).kill(others[-1])
        with pytest.raises(PotluckError, match=others[-1]):
            service.at(first)(torch.randn(1, WIDTH))


@pytest.mark.parametrize("rows", [1, 8])
def test_what_the_first_one_takes_at_once_the_others_take_too(wide, rows, monkeypatch):
    net, model = wide
    monkeypatch.setattr(entrances, "MIN_RUN_S", 0.5)  # of a batch, as in a slow home
    with home_of(a="22 MiB", b="22 MiB", c="22 MiB") as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()
        first, *others = service.devices
        assert len(others) == 2
        entrance, x = service.at(first), torch.randn(rows, WIDTH)
        answers = [entrance.ask(x) for _ in range(20)]
        with torch.no_grad():
            expected = net(x)
        for answer in answers:
            assert torch.allclose(answer.result().value, expected, atol=1e-6)


def test_a_model_divided_inside_its_operators_has_an_entrance_too(wide):
    net, model = wide
    with home_of(a=FEW, b=FEW) as home:
        service = home.serve(model.divided((1, 1)), "wide", slo=potluck.Latency(LONG_S)).wait()
        first, second = service.devices
        x = torch.randn(3, WIDTH)
        answer = service.at(first).ask(x).result()
        assert answer.path == (first, second)
        with torch.no_grad():
            assert torch.allclose(answer.value, net(x), atol=1e-6)


def test_inputs_that_only_later_ones_read_and_outputs_of_earlier_ones_go_through_the_first():
    net, model = two_outputs()
    with home_of(a="22 MiB", b="22 MiB", c="22 MiB") as home:
        service = home.serve(model, "two", slo=potluck.Latency(LONG_S)).wait()
        first, *others = service.devices
        assert len(others) == 2
        for rows in (1, 3):
            x, late = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
            answer = service.at(first)(x, late)
            with torch.no_grad():
                expected = net(x, late)
            for name, value in expected.items():
                assert torch.allclose(answer[name], value, atol=1e-6)


@pytest.mark.long
def test_a_small_service_runs_beside_it(wide, model, net):
    with home_of(a=FEW, b=FEW) as home:
        large = home.serve(wide[1], "wide", slo=potluck.Latency(LONG_S)).wait()
        small = home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        futures = [large.ask(torch.randn(1, WIDTH)) for _ in range(5)]
        x = torch.randn(1, 8)
        assert settled([small.ask(x) for _ in range(20)], net, x) == 20
        assert all(future.result().shape == (1, WIDTH) for future in futures)


@pytest.mark.long
def test_when_one_of_them_goes_the_others_share_it(wide):
    net, model = wide
    with home_of(a=FEW, b=FEW, c=FEW) as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()
        lost, *_ = service.devices
        x = torch.randn(1, WIDTH)
        memory_of(home).kill(lost)
        assert 0 <= settled([service.ask(x) for _ in range(5)], net, x) <= 5
        until_back(home, service, {"a", "b", "c"} - {lost})
        assert settled([service.ask(x)], net, x) == 1


@pytest.mark.long
def test_a_division_that_fails_once_is_tried_again(wide, monkeypatch):
    net, model = wide
    fails, divided = iter([True]), serving.divide

    def once(*args):
        if next(fails, False):
            raise PlanError("somebody went meanwhile.")
        return divided(*args)

    with home_of(a=FEW, b=FEW, c=FEW) as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()
        lost, *_ = service.devices
        monkeypatch.setattr(serving, "divide", once)
        memory_of(home).kill(lost)
        until_back(home, service, {"a", "b", "c"} - {lost})
        assert next(fails, None) is None
        x = torch.randn(1, WIDTH)
        assert settled([service.ask(x)], net, x) == 1


@pytest.mark.long
def test_when_too_few_are_left_it_is_refused_until_the_same_are_back(wide, monkeypatch):
    net, model = wide
    with home_of(a=FEW, b=FEW) as home:
        service = home.serve(model, "wide", slo=potluck.Latency(LONG_S)).wait()

        def never(*_):
            raise PlanError("to divide and measure it again takes many times as long.")

        monkeypatch.setattr(serving, "divide", never)
        memory_of(home).kill("b")
        x = torch.randn(1, WIDTH)
        settled([service.ask(x) for _ in range(3)], net, x)
        with pytest.raises(NotServed):
            service(x)
        memory_of(home).restart("b")
        until_back(home, service, ["a", "b"])
        assert settled([service.ask(x)], net, x) == 1


@pytest.mark.long
def test_all_of_them_have_too_little_room_says_so(wide):
    with home_of(a="14 MiB", b="14 MiB") as home:
        with pytest.raises(PotluckError, match=r"may use 14\.7 MB"):
            home.serve(wide[1], "wide", slo=potluck.Latency(LONG_S)).wait()
        assert not home.services


@pytest.mark.long
def test_a_device_that_can_hold_it_alone_does(wide):
    with home_of(a=FEW, b=MANY) as home:
        service = home.serve(wide[1], "wide", slo=potluck.Latency(LONG_S)).wait()
        assert list(service.devices) == ["b"]
