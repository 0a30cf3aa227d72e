"""Which micro-batch sizes are tried: what fits is found whatever divisors a batch has, and absurd
batches end soon.
"""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import later, random_home

from potluck.errors import Infeasible, UserError
from potluck.planning import make_plans
from potluck.planning.api import solve
from potluck.planning.building_blocks import candidates
from potluck.planning.feasibility import breaches
from potluck.planning.registry import BASELINES, ask
from potluck.planning.relax import granted
from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Problem,
    QoE,
    Training,
)
from potluck.simulate import footprint
from potluck.simulate.cost import CostTable

AWKWARD = [33, 41, 62, 101, *later([37, 74, 146, 211])]


def short_home(seed, batch, rows=1):
    """A home whose devices hold the whole model with micro-batches of so many rows and little more,
    and a slow one that holds less."""
    problem = random_home(seed, Training(batch=batch), devices=3)
    layers = tuple(replace(layer, activation_bytes=50_000) for layer in problem.layers)
    problem = replace(problem, layers=layers)
    needed = footprint.memory_bytes(
        CostTable(problem), 0, len(layers), rows, warm_up=1, n_micro_batches=batch // rows
    )
    return granted(problem, {device.name: int(1.02 * needed) for device in problem.devices})


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("batch", AWKWARD)
def test_what_fits_only_in_single_rows_is_planned_whatever_divisors_the_batch_has(batch):
    problem = short_home(batch, batch)
    stated = replace(problem, workload=Training(batch=batch, micro_batch=1))
    assert make_plans(problem).best.latency_s <= make_plans(stated).best.latency_s * 1.001


@pytest.mark.parametrize("planner", sorted({*BASELINES} - {"data parallel"}))
def test_other_planners_may_choose_from_the_same_sizes(planner):
    assert ask(short_home(3, 37), planner).best.micro_batch == 1


@pytest.mark.long
@pytest.mark.parametrize("batch", AWKWARD)
def test_an_awkward_batch_is_no_slower_than_one_that_has_every_divisor(batch):
    """Per row, on devices of plenty of memory that lose nothing by small micro-batches: a pipeline
    can be filled.
    """
    awkward = make_plans(random_home(1, Training(batch=batch))).best.latency_s / batch
    assert awkward <= make_plans(random_home(1, Training(batch=32))).best.latency_s / 32 * 1.05


@pytest.mark.parametrize("batch", [64, 96, 128, 256, 720])
def test_only_where_memory_is_short_small_sizes_are_tried_too(batch):
    plenty = candidates.micro_batches(random_home(1, Training(batch=batch)))
    short = candidates.micro_batches(short_home(1, batch, rows=2 if batch > 256 else 1))
    assert (
        max(batch // size for size in plenty) <= candidates.MAX_MICRO_BATCHES < batch // min(short)
    )
    assert set(plenty) < set(short)
    assert batch // min(short) <= candidates.MOST_MICRO_BATCHES
    assert all(batch % size == 0 for size in short)


@pytest.mark.long
def test_of_a_batch_of_thousands_a_plan_in_one_or_two_rows_is_found():
    problem = short_home(5, 2048)
    best = make_plans(problem).best
    assert best.micro_batch <= 2
    assert not breaches(problem, best)


@pytest.mark.long
def test_micro_batches_that_help_are_named():
    workload = Training(batch=64, micro_batch=64)
    problem = replace(short_home(5, workload.batch), workload=workload)
    with pytest.raises(Infeasible, match=r"Would do .*micro-batches of") as error:
        solve(problem)
    (remedy,) = (
        remedy for remedy in error.value.facts["remedies"] if remedy.limit == "micro-batch"
    )
    assert make_plans(
        replace(problem, workload=replace(workload, micro_batch=int(remedy.value)))
    ).best.latency_s


@pytest.mark.parametrize(
    "workload",
    [Training(batch=99999999), Training(batch=10**18 + 9), Inference(batch=99999999)],
    ids=str,
)
def test_of_an_absurd_batch_it_is_proved_without_a_search_that_nothing_fits(workload, monkeypatch):
    problem = replace(short_home(1, 8), workload=workload)
    monkeypatch.setattr("potluck.planning.search_passes.search", None)
    with pytest.raises(Infeasible, match=f"that make up {workload.batch}|fits on no device"):
        make_plans(problem)


def test_too_many_micro_batches_are_refused():
    with pytest.raises(UserError, match="99999999 of them a step; plans have 4096 at most"):
        make_plans(random_home(1, Training(batch=99999999, micro_batch=1)))


@pytest.mark.parametrize("batch", [257, 263, 514, 1021, 2 * 499])
def test_a_batch_whose_divisors_are_far_apart_has_small_micro_batches_too(batch):
    sizes = candidates.micro_batches(random_home(1, Training(batch=batch)))
    assert min(sizes) <= batch / 16
    assert all(batch % size == 0 for size in sizes)


@pytest.mark.long
@pytest.mark.parametrize("batch", [99, 117, *later([165, 222, 246, 296])])
def test_a_size_that_is_stated_is_no_better_than_the_choice(batch):
    """Batches whose divisors stop early and go on late, on alike devices that a pipeline fills."""
    problem = alike_devices(4, batch)
    choice = make_plans(problem).best.latency_s
    stated = replace(problem, workload=Training(batch=batch, micro_batch=1))
    assert choice <= make_plans(stated).best.latency_s * 1.001


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("batch", [512, *later([2048, 4096])])
def test_of_a_large_batch_memory_may_hold_few_rows_at_once(batch, rows):
    problem = alike_devices(1, batch)
    layers = (replace(problem.layers[0], parameter_bytes=400, activation_bytes=1_000_000),)
    problem = granted(replace(problem, layers=layers), {"d0": int((rows + 0.8) * 1e6)})
    best = make_plans(problem).best
    assert best.micro_batch == rows
    assert best.problem == problem


def alike_devices(n, batch):
    """As many alike layers, which are large, and links that are no matter."""
    layer = Layer(
        name="l",
        parameter_bytes=40_000_000,
        output_bytes=100,
        gradient_bytes=100,
        activation_bytes=100,
    )
    cost = LayerCost(rows=(1, 100), forward_s=(0.01, 1.0), backward_s=(0.02, 2.0))
    names = [f"d{i}" for i in range(n)]
    air = Path(media=(("air", 1),), latency_s=1e-4)
    return Problem(
        model="m",
        devices=tuple(Device(name=name, memory_bytes=1 << 40) for name in names),
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=1e7),),
            paths={(a, b): air for a in names for b in names if a != b},
        ),
        layers=tuple(replace(layer, name=f"l{i}") for i in range(n)),
        costs=dict.fromkeys(names, (cost,) * n),
        workload=Training(batch=batch),
    )


def rows_cost_less(batch, rows):
    """One device that holds so many rows at once, on which each call has a cost of its own, so that
    larger micro-batches are faster.
    """
    layer = Layer(
        name="l",
        parameter_bytes=400,
        output_bytes=1000,
        gradient_bytes=1000,
        activation_bytes=100_000,
    )
    cost = LayerCost(rows=(1, 64), forward_s=(0.011, 0.074), backward_s=(0.022, 0.148))
    return Problem(
        model="m",
        devices=(Device(name="d", memory_bytes=int((rows + 0.7) * 100_000) + 3200),),
        network=Network(media=(Medium(name="air", capacity_bytes_per_s=1e7),), paths={}),
        layers=(layer,),
        costs={"d": (cost,)},
        workload=Training(batch=batch),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("batch", "rows"),
    [(4096, 4), (3000, 7), (720, 9), (1260, 14), (360, 5), (960, 15), (2520, 21), (512, 5)],
)
def test_the_largest_micro_batch_that_memory_holds_is_found_also_for_a_limit(batch, rows):
    size = next(rows - less for less in range(rows) if batch % (rows - less) == 0)
    problem = rows_cost_less(batch, rows)
    best = make_plans(problem).best
    assert best.micro_batch == size
    in_time = replace(problem, qoe=QoE(latency_s=1.02 * best.latency_s))
    assert make_plans(in_time).best.micro_batch == size
