"""What a call of a piece takes is found from tiny pieces, and is no layer's."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

import potluck
from potluck.handle import Task
from potluck.profile.call_cost import (
    N_FEW,
    N_MANY,
    NO_CALL,
    call_cost,
    seconds_of,
    tiny_piece,
    without,
)
from potluck.profile.device_bench import Bench
from potluck.records import LayerCost
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.messages import Measured
from potluck_wire.segment import loads

torch = pytest.importorskip("torch")
CALL_S = {"forward": 60e-6, "backward": 120e-6, "sgd": 150e-6, "momentum": 160e-6, "adamw": 300e-6}
OPERATOR_S = {"forward": 9e-6, "backward": 21e-6, "sgd": 3e-6, "momentum": 5e-6, "adamw": 9e-6}


def cost_of(n_operators: int, rows=(1,), *, call_frac=1.0) -> LayerCost:
    """Of a piece of so many operators of one row each."""

    def seconds(part: str, n_rows: int = 1) -> float:
        return call_frac * CALL_S[part] + n_rows * n_operators * OPERATOR_S[part]

    return LayerCost(
        rows=tuple(rows),
        forward_s=tuple(seconds("forward", n) for n in rows),
        backward_s=tuple(seconds("backward", n) for n in rows),
        update_s=seconds("adamw"),
        sgd_s=(seconds("sgd"), seconds("momentum")),
    )


def same(found: LayerCost, expected: LayerCost) -> None:
    assert found.forward_s == pytest.approx(expected.forward_s)
    assert found.backward_s == pytest.approx(expected.backward_s)
    assert (found.update_s, *found.sgd_s) == pytest.approx((expected.update_s, *expected.sgd_s))


def test_what_is_left_at_no_operators_is_the_calls():
    same(call_cost(cost_of(N_FEW), cost_of(N_MANY)), cost_of(0))


def test_noise_makes_no_call_negative_or_longer_than_a_piece():
    few, many = cost_of(N_FEW), cost_of(N_MANY)
    same(call_cost(few, few), few)
    same(call_cost(many, few), many)
    assert call_cost(few, cost_of(90)).forward_s == (0.0,)


@pytest.mark.parametrize("rows", [(1,), (1, 4, 16)])
def test_a_layer_is_its_own_time(rows):
    call = call_cost(cost_of(N_FEW), cost_of(N_MANY))
    same(without(cost_of(3, rows), call), cost_of(3, rows, call_frac=0.0))
    assert without(cost_of(3, rows), NO_CALL) == cost_of(3, rows)


def test_a_layer_of_next_to_nothing_takes_some_time():
    own = without(cost_of(0), call_cost(cost_of(N_FEW), cost_of(N_MANY)))
    assert 0 < own.forward_s[0] < CALL_S["forward"]


class _Device:
    """Answers as one that takes its time for each call and each operator of a document."""

    def __init__(self) -> None:
        self.n_calls = 0

    def ask(self, request):
        ((name, (order, (document,))),) = request.requests.items()
        self.n_calls += order.task == "call"
        cost = cost_of(document.count(b'"aten.'), order.rows)
        answer = Measured(
            task=order.task,
            rows=order.rows,
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            memory_bytes=(0,) * len(order.rows),
            update_s=cost.update_s,
            sgd_s=cost.sgd_s,
        )
        found = Future()
        found.set_result({name: (answer, ())})
        return found


@pytest.mark.parametrize(("emulated", "n_calls"), [(None, 2), ({"slowdown": 2.0}, 0)])
def test_layers_are_measured_without_the_call_that_a_stage_takes_once(emulated, n_calls):
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5)))
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    model = potluck.Model.from_torch(net, x, loss=torch.nn.MSELoss(), example_targets=y)
    capability = {"backends": ("torch",), "emulated": emulated}
    device = _Device()
    bench = Bench(device, {"laptop": SimpleNamespace(capability=capability)}, Task(), 1)
    n_layers = len(model.layers(True))
    costs = [bench.layer("laptop", model, i, True, (4,), 3) for i in range(n_layers)]
    assert device.n_calls == n_calls
    call = bench.call("laptop", "aten", True)
    together_s = sum(cost.forward_s[0] + cost.backward_s[0] for cost in costs)
    once_s = CALL_S["forward"] + CALL_S["backward"]
    own_s = together_s - n_layers * (0 if n_calls else once_s)
    operators_s = own_s / (OPERATOR_S["forward"] + OPERATOR_S["backward"]) / 4
    assert operators_s == pytest.approx(round(operators_s))
    assert round(operators_s) >= n_layers
    assert 2 * seconds_of(call) == pytest.approx(once_s if n_calls else 0.0)


def test_a_worker_takes_the_tiny_pieces():
    segment = TrainingSegment(loads(tiny_piece(N_MANY)))
    inputs = segment.example(3)
    (found,) = segment.forward(inputs, key="k", train=True, rows=(0, 3, 3), step=0)
    (gradient,) = segment.backward("k", [torch.ones_like(found)], 1.0)
    torch.testing.assert_close(found, inputs[0] * gradient)
    assert segment.gradients(1.0).shape == (8 * N_MANY,)
