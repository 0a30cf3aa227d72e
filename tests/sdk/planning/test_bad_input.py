"""What a user may get wrong before anything is planned, and what is said about it."""

import math
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from tests.sdk.planning.homes import random_home

import potluck
from potluck.errors import EmptyHome, FileError, Infeasible, UserError
from potluck.planning import make_plans
from potluck.planning.registry import PLANNERS, ask
from potluck.planning.relax import granted
from potluck.profile import library
from potluck.records import HOME, LayerCost, QoE, Training

np = pytest.importorskip("numpy")


def disconnected(problem):
    paths = {pair: path for pair, path in problem.network.paths.items() if pair != ("d1", "d0")}
    return replace(problem, network=replace(problem.network, paths=paths))


def powerless(problem):
    devices = (
        problem.devices[0],
        *(replace(device, busy_w=None) for device in problem.devices[1:]),
    )
    return replace(problem, devices=devices)


@pytest.mark.parametrize("name", ["potluck", "asteroid", "single"])
@pytest.mark.parametrize(
    ("problem", "kind", "pattern"),
    [
        (
            disconnected(random_home(0)),
            UserError,
            r"no path from d1 to d0\. Connect them or leave one out",
        ),
        (replace(random_home(0), devices=()), EmptyHome, "has no devices"),
        (
            powerless(replace(random_home(0), qoe=QoE(energy_j=5.0))),
            UserError,
            "d1: energy is limited, and nobody",
        ),
        (
            powerless(replace(random_home(0), qoe=QoE(device_energy_j={"d1": 5.0}))),
            UserError,
            "d1: energy is limited",
        ),
    ],
    ids=["disconnected", "empty", "unknown power", "unknown power of one"],
)
def test_what_cannot_be_planned_is_named_by_every_planner(name, problem, kind, pattern):
    with pytest.raises(kind, match=pattern):
        make_plans(problem) if name == "potluck" else ask(problem, name)


@pytest.mark.long
def test_unknown_power_is_no_trouble_where_nobody_limits_it():
    best = make_plans(powerless(random_home(0))).best
    assert best.latency_s > 0
    limited = replace(powerless(random_home(0)), qoe=QoE(device_energy_j={"d0": 1e9}))
    assert make_plans(limited).best.latency_s > 0


@pytest.mark.parametrize("name", PLANNERS)
def test_a_layer_that_fits_nowhere_is_named_with_need_and_room(name):
    problem = random_home(1)
    layers = (
        *problem.layers[:-1],
        replace(problem.layers[-1], name="huge", parameter_bytes=10**9, widest_parameter_bytes=0),
    )
    problem = granted(
        replace(problem, layers=layers), {device.name: 10**8 for device in problem.devices}
    )
    with pytest.raises(
        Infeasible, match=r"layer 'huge' of chain fits on no device: it needs 4\d{3} MB, .* 100 MB"
    ):
        make_plans(problem) if name == "potluck" else ask(problem, name)


def test_layers_that_take_no_time_at_all_still_make_a_plan():
    problem = random_home(1)
    free = tuple(LayerCost(rows=(1,), forward_s=(0.0,), backward_s=(0.0,)) for _ in problem.layers)
    problem = replace(problem, costs={device.name: free for device in problem.devices})
    for name in PLANNERS:
        plans = make_plans(problem) if name == "potluck" else ask(problem, name)
        assert plans.best.latency_s >= 0


def test_a_device_whose_rates_nobody_knows_is_named_with_the_way_out():
    profile = potluck.estimate("family", "bert-small", max_layers=4, rows=(1, 8))
    spec = library.load_device("genio-720")
    assert "peak_fp32_flop_per_s" not in spec.numbers
    # a home of the library assumes it
    assert profile.with_device("genio-720").devices[-1].name == "genio-720"
    bare = library.load_device("iphone-15")
    missing = next(
        (n for n in ("peak_fp32_flop_per_s", "memory_bytes_per_s") if n not in bare.numbers), None
    )
    if missing:
        with pytest.raises(FileError, match=rf"{missing} of iphone-15 is not known"):
            profile.with_device("iphone-15")
        numbers = {"peak_fp32_flop_per_s": 9e11, "memory_bytes_per_s": 5e10}
        assert profile.with_device("iphone-15", **numbers).devices[-1].name == "iphone-15"


def test_a_batch_that_no_micro_batch_divides_is_planned_row_by_row_or_whole():
    best = make_plans(random_home(2, Training(batch=7))).best
    assert best.batch == 7
    with pytest.raises(UserError, match="7 rows cannot be split into micro-batches of 2"):
        Training(batch=7, micro_batch=2)


@pytest.mark.long
def test_a_home_that_is_not_joined_to_the_notebook_is_still_planned():
    problem = random_home(0)
    assert not any(HOME in pair for pair in problem.network.paths)
    assert make_plans(problem).best.latency_s > 0


BAD = (-1, -1e-9, math.nan, math.inf, -math.inf, True, False, "1", (), 1j, 10**400, np.bool_(True))
MAPPINGS = ("memory_bytes", "device_energy_j")


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("field", fields(QoE), ids=lambda field: field.name)
def test_a_limit_that_is_no_number_is_refused_by_its_name(field, bad):
    value, named = ({"d0": bad}, "d0") if field.name in MAPPINGS else (bad, field.name)
    with pytest.raises(UserError, match=rf"^QoE (limit of )?{named} must be"):
        QoE(**{field.name: value})
    if field.name in MAPPINGS:
        with pytest.raises(UserError, match=rf"^QoE {field.name} must say a limit for each device"):
            QoE(**{field.name: bad})
        with pytest.raises(UserError, match="d0 must be a number, got None"):
            QoE(**{field.name: {"d0": None}})


@pytest.mark.few(5)
@pytest.mark.parametrize("field", fields(QoE), ids=lambda field: field.name)
@pytest.mark.parametrize("good", [3, 0.5, np.float32(0.5), Fraction(1, 2)], ids=repr)
def test_any_other_number_is_a_limit_and_plans_are_made_with_it(field, good):
    limit = good * 10**9  # of bytes, say: what is asked for here is possible
    qoe = QoE(**{field.name: {"d0": limit} if field.name in MAPPINGS else limit})
    alone = replace(random_home(0), devices=random_home(0).devices[:1])
    assert make_plans(replace(alone, qoe=qoe)).best.latency_s > 0


@pytest.mark.long
def test_lateness_may_cost_nothing():
    best = [
        make_plans(replace(random_home(0), qoe=QoE(energy_j=1e9, lambda_j_per_s=rate))).best
        for rate in (0, 1e6)
    ]
    assert best[0].energy_j <= best[1].energy_j
    assert best[0].latency_s >= best[1].latency_s
