"""Plans simulated straight from their layout against their compiled programs: same time, energy and
memory.
"""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from potluck.errors import PlanError
from potluck.planning import predict
from potluck.planning.search.local_search import with_depths
from potluck.records import (
    HOME,
    Device,
    Edge,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    SharedWeight,
    Stage,
    Training,
)
from potluck.simulate import steady_s
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct, in_flight
from potluck.simulate.flows import learning_layers
from potluck.simulate.simulator_cache import SimulatorCache

WORKLOADS = [
    Training(batch=8, micro_batch=2),
    Training(batch=12, micro_batch=4),
    Inference(batch=4),
    Inference(batch=4, streaming=True),
]


def random_problem(rng):
    names = [f"d{i}" for i in range(rng.randint(1, 5))]
    ends = [*names, HOME] if rng.random() < 0.5 else names
    media = tuple(
        Medium(name=f"m{i}", capacity_bytes_per_s=rng.choice([1e4, 1e5, 1e6])) for i in range(3)
    )

    def path():
        crossed = rng.sample(range(3), rng.randint(1, 2))
        host = rng.choice(["", "box"]) if shared else ""
        return Path(
            media=tuple((f"m{i}", rng.randint(1, 2)) for i in crossed),
            latency_s=rng.choice([0.0, 0.01]),
            host=host,
        )

    def place():
        if not shared or rng.random() < 0.2:
            return {}
        return {"host": "box", "host_cores": 1.5, "handling_s": rng.choice([0.0, 0.003])}

    shared = rng.random() < 0.3
    frozen = rng.choice([0, 0, 2])  # so many first layers have no gradient
    layers = []
    for i in range(rng.randint(2, 7)):
        size = rng.choice([100, 1000, 10_000])
        weights, buffers = rng.choice([0, 4, 8, 1000]), rng.choice([0, 40])
        layers.append(
            Layer(
                name=f"l{i}",
                parameter_bytes=weights,
                frozen_bytes=rng.choice([0, 0, weights, weights // 8 * 4]),
                buffer_bytes=buffers,
                fixed_buffer_bytes=rng.choice([0, buffers]),
                output_bytes=size,
                gradient_bytes=0 if i < frozen else rng.choice([size, size // 2]),
                activation_bytes=rng.choice([0, 500]),
            )
        )
    cost = [
        LayerCost(rows=(1, 4), forward_s=(f, 2 * f), backward_s=(3 * f, 5 * f))
        for f in (0.01, 0.02, 0.05)
    ]
    return Problem(
        model="chain",
        workload=rng.choice(WORKLOADS),
        layers=tuple(layers),
        devices=tuple(
            Device(
                name=n,
                memory_bytes=10**9,
                idle_w=1.0,
                busy_w=4.0,
                radio_w=1.0,
                overhead_s=1e-3,
                **place(),
            )
            for n in names
        ),
        network=Network(media=media, paths={(a, b): path() for a in ends for b in ends if a != b}),
        costs={name: tuple(rng.choice(cost) for _ in layers) for name in names},
        input_bytes=rng.choice([0, 300]),
        target_bytes=rng.choice([0, 8]),
        result_bytes=7,
    )


def with_branches(rng, problem):
    """The same layers with edges to random later layers, some without a gradient, some fed by
    home.
    """
    n_layers, layers = len(problem.layers), []
    for i, layer in enumerate(problem.layers):
        edges = []
        for _ in range(rng.randint(1, 3) if i < n_layers - 1 else 0):
            size = rng.choice([100, 1000])
            to = tuple(sorted(rng.sample(range(i + 1, n_layers), rng.randint(1, n_layers - 1 - i))))
            edges.append(
                Edge(to=to, output_bytes=size, gradient_bytes=rng.choice([0, size, size // 2]))
            )
        fed = rng.choice([0, 0, 100]) if i and problem.input_bytes else 0
        layers.append(replace(layer, edges=tuple(edges), feed_bytes=fed))
    input_bytes = sum(layer.feed_bytes for layer in layers) + rng.choice([0, 300])
    return replace(problem, layers=tuple(layers), input_bytes=input_bytes)


def with_tied_weights(rng, problem):
    """Some of the layers that learn in every plan read a weight that others read, too."""
    learning = [i for i, learns in enumerate(learning_layers(problem)) if learns]
    layers = [*problem.layers]
    for name in ("embedding", "norm"):
        nbytes = rng.choice([4, 400, 40_000])
        weight = SharedWeight(name=name, nbytes=nbytes, summed_bytes=nbytes)
        for i in rng.sample(learning, min(len(learning), rng.randint(1, 3))):
            layers[i] = replace(
                layers[i],
                parameter_bytes=layers[i].parameter_bytes + nbytes,
                shared=(*layers[i].shared, weight),
            )
    return replace(problem, layers=tuple(layers))


def random_plan(rng, problem):
    training, batch = isinstance(problem.workload, Training), problem.workload.batch
    micro_batch = problem.workload.micro_batch if training else rng.choice([1, 2, 4])
    names, n_layers = [d.name for d in problem.devices], len(problem.layers)
    n_stages = rng.randint(1, min(5 if problem.branches else 3, n_layers))
    cuts = [0, *sorted(rng.sample(range(1, n_layers), n_stages - 1)), n_layers]
    depths = sorted((rng.randint(1, 5) for _ in range(n_stages)), reverse=True)
    own_sizes = training and rng.random() < 0.4
    stages = []
    for start, stop, depth in zip(cuts, cuts[1:], depths, strict=False):
        rows = rng.choice([2, 4, batch // 2, batch]) if own_sizes else micro_batch
        rows = micro_batch if rows % micro_batch and micro_batch % rows else rows
        # a device may be in several stages
        group = rng.sample(names, rng.randint(1, min(len(names), rows)))
        ends = [0, *sorted(rng.sample(range(1, rows), len(group) - 1)), rows]
        shares = tuple(b - a for a, b in pairwise(ends))
        again = training and (start + stop + depth) % 3 == 0
        stages.append(
            Stage(
                start=start,
                stop=stop,
                devices=tuple(group),
                shares=shares,
                warm_up=depth,
                recompute=again,
                micro_batch=rows if own_sizes else None,
            )
        )
    if own_sizes:  # a stage that keeps too few would wait for ever
        stages = [
            replace(stage, warm_up=max(stage.warm_up, deep.warm_up))
            for stage, deep in zip(stages, with_depths(CostTable(problem), stages), strict=True)
        ]
    return Plan(
        planner="random",
        model="chain",
        stages=tuple(stages),
        micro_batch=micro_batch,
        n_micro_batches=batch // micro_batch,
        training=training,
    )


@pytest.mark.long
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("seed", range(300))
def test_the_direct_way_says_what_the_programs_say(seed, branches):
    rng = random.Random(seed)
    problem = random_problem(rng)
    problem = with_branches(rng, problem) if branches else problem
    if isinstance(problem.workload, Training) and seed % 4 == 1:
        problem = replace(problem, workload=replace(problem.workload, clipped=True))
    if seed % 3 == 2:
        problem = with_tied_weights(rng, problem)
    table = CostTable(problem)
    direct = Direct(problem, table)
    plan = random_plan(rng, problem)
    for _ in range(2):  # the second time from the kept layout
        trace, outcome = predict(problem, plan, table), direct.run(plan)
        pace = (in_flight(plan), problem)
        latency_s = steady_s(trace, *pace) if direct.streaming else trace.step_s[0]
        # An answer that crosses no medium leaves no event, so a trace cannot tell when it got its
        # turn to be sent.
        if not (
            direct.streaming
            and branches
            and all(HOME not in pair for pair in problem.network.paths)
        ):
            assert outcome.latency_s == pytest.approx(latency_s, rel=1e-9)
        # Of a stream they are those between two answers; a trace fills and drains it, too.
        n = len(trace.step_s)
        last_s = max(event.stop_s for event in trace.events)
        waits_s = last_s / n - outcome.latency_s if direct.streaming else 0.0
        energy_j = {
            name: joules / n - direct.devices[name].idle_w * waits_s
            for name, joules in trace.energy_j.items()
        }
        late_j = (
            0.01 if direct.streaming else 0.0
        )  # an answer arrives after its event, by a latency
        assert outcome.device_energy_j() == pytest.approx(energy_j, rel=1e-9, abs=late_j)
        assert outcome.peak_bytes() == trace.peak_bytes


@pytest.mark.parametrize("seed", range(12))
def test_the_order_in_which_devices_are_listed_changes_no_prediction(seed):
    """Also where those of one host were measured apart, and disagree about its cores."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    devices = [replace(d, host="box", host_cores=1.0 + i) for i, d in enumerate(problem.devices)]
    plan = random_plan(rng, problem)
    predicted = {
        Direct(problem, CostTable(problem)).run(plan).latency_s
        for problem in (replace(problem, devices=tuple(d)) for d in (devices, devices[::-1]))
    }
    assert max(predicted) == pytest.approx(min(predicted))


@pytest.mark.parametrize("seed", range(12))
def test_joules_of_a_request_do_not_depend_on_how_many_are_simulated(seed, monkeypatch):
    rng = random.Random(seed)
    problem = replace(random_problem(rng), workload=Inference(batch=4, streaming=True))
    plan = replace(random_plan(rng, problem), training=False)
    beyond_idling = []
    for rounds in (5, 40):
        monkeypatch.setattr("potluck.simulate.direct_simulation.STREAM_ROUNDS", rounds)
        outcome = Direct(problem).run(plan)
        idling = outcome.latency_s * len(plan.devices)  # all draw 1 W
        beyond_idling.append(sum(outcome.device_energy_j().values()) - idling)
    assert beyond_idling[0] == pytest.approx(beyond_idling[1], rel=0.005)


@pytest.mark.parametrize(
    "seed", [22, 24, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(40))]
)
def test_the_pace_of_a_stream_is_that_of_many_more_requests(seed, monkeypatch):
    rng = random.Random(seed)
    problem = replace(random_problem(rng), workload=Inference(batch=4, streaming=True))
    problem = with_branches(rng, problem) if seed % 2 else problem
    paths = {
        pair: replace(path, latency_s=10 ** rng.uniform(-2, 0))  # seconds: answers come in bursts
        for pair, path in sorted(problem.network.paths.items())
    }
    problem = replace(problem, network=replace(problem.network, paths=paths))
    plan = replace(random_plan(rng, problem), training=False)
    found_s = Direct(problem).run(plan).latency_s
    monkeypatch.setattr("potluck.simulate.direct_simulation.STREAM_ROUNDS", 100)
    assert found_s == pytest.approx(Direct(problem).run(plan).latency_s, rel=0.02)


def test_of_streams_too_slow_to_matter_the_pace_may_be_rough_until_somebody_asks():
    rng = random.Random(22)
    problem = replace(random_problem(rng), workload=Inference(batch=4, streaming=True))
    paths = {pair: replace(p, latency_s=0.5) for pair, p in problem.network.paths.items()}
    problem = replace(problem, network=replace(problem.network, paths=paths))
    plan = replace(random_plan(rng, problem), training=False)
    cache = SimulatorCache(problem)
    rough = cache.run(plan, most_s=0.0)
    assert not rough.is_settled
    exact = cache.run(plan)
    assert exact.is_settled
    assert exact.n_steps > rough.n_steps
    assert exact.latency_s == Direct(problem).run(plan).latency_s


def test_of_streams_that_memory_does_not_hold_the_pace_may_be_rough_until_somebody_asks():
    rng = random.Random(22)
    problem = replace(random_problem(rng), workload=Inference(batch=4, streaming=True))
    paths = {pair: replace(p, latency_s=0.5) for pair, p in problem.network.paths.items()}
    problem = replace(problem, network=replace(problem.network, paths=paths))
    plan = replace(random_plan(rng, problem), training=False)
    exact = Direct(problem).run(plan)
    held = exact.peak_bytes()
    assert exact.is_settled
    assert SimulatorCache(problem).run(plan, budgets=held).latency_s == exact.latency_s
    cache = SimulatorCache(problem)
    for name in held:
        assert not cache.run(plan, budgets={**held, name: held[name] // 2}).is_settled
    assert cache.run(plan, budgets=held).is_settled


@pytest.mark.few(15)
@pytest.mark.parametrize("name", ["zb-h1", "zb-2p", "zb-compact"])
@pytest.mark.parametrize("seed", range(150))
def test_backwards_in_two_parts_take_what_their_programs_take(seed, name):
    rng = random.Random(seed)
    problem = replace(random_problem(rng), workload=WORKLOADS[seed % 2])
    problem = with_branches(rng, problem) if seed % 3 == 0 else problem
    plan = random_plan(rng, problem)
    returns = any({*a.devices} & {*b.devices} for a, b in combinations(plan.stages, 2))
    plan = replace(plan, schedule="zb-compact" if returns else name)
    table = CostTable(problem)
    trace, outcome = predict(problem, plan, table), Direct(problem, table).run(plan)
    assert outcome.latency_s == pytest.approx(trace.step_s[0], rel=1e-9)
    assert outcome.peak_bytes() == trace.peak_bytes


def test_a_kept_layout_serves_other_layers_and_devices():
    rng = random.Random(7)
    problem = replace(random_problem(rng), workload=Training(batch=8, micro_batch=2))
    direct = Direct(problem)
    for name in [d.name for d in problem.devices]:
        stages = (Stage(start=0, stop=len(problem.layers), devices=(name,), shares=(2,)),)
        plan = Plan(planner="p", model="chain", stages=stages, micro_batch=2, n_micro_batches=4)
        assert direct.run(plan).latency_s == pytest.approx(predict(problem, plan).step_s[0])
    assert direct.n_layouts == 1


def test_depths_that_can_never_run_are_an_error():
    problem = replace(random_problem(random.Random(1)), workload=Training(batch=8, micro_batch=2))
    name, n_layers = problem.devices[0].name, len(problem.layers)
    stages = (
        Stage(start=0, stop=1, devices=(name,), shares=(2,), warm_up=1),
        Stage(start=1, stop=n_layers, devices=(name,), shares=(2,), warm_up=3),
    )
    plan = Plan(planner="p", model="chain", stages=stages, micro_batch=2, n_micro_batches=4)
    with pytest.raises(PlanError, match="waits for ever"):
        Direct(problem).run(plan)


def test_what_takes_no_time_holds_its_memory_all_the_same():
    """An embedding of 0 s that works on more than what stays."""

    def peaks(seconds):
        costs = (LayerCost(rows=(1,), forward_s=(seconds,)), LayerCost(rows=(1,), forward_s=(1.0,)))
        problem = Problem(
            model="m",
            devices=(Device(name="d0", memory_bytes=10**9), Device(name="d1", memory_bytes=10**9)),
            network=Network(
                media=(Medium(name="air", capacity_bytes_per_s=1e6),),
                paths={pair: Path(media=(("air", 1),)) for pair in (("d0", "d1"), ("d1", "d0"))},
            ),
            layers=(
                Layer(name="look up", output_bytes=80_000, parameter_bytes=150_000),
                Layer(name="work", output_bytes=10),
            ),
            costs={"d0": costs, "d1": costs},
            workload=Inference(batch=1),
        )
        plan = Plan(
            planner="by hand",
            model="m",
            training=False,
            micro_batch=1,
            stages=(
                Stage(start=0, stop=1, devices=("d0",), shares=(1,)),
                Stage(start=1, stop=2, devices=("d1",), shares=(1,)),
            ),
        )
        return [Direct(problem).run(plan).peak_bytes(), predict(problem, plan).peak_bytes]

    assert peaks(0.0) == peaks(1e-6)


def test_no_stream_is_faster_than_its_busiest_medium():
    """The first device is a little quicker than its cable, so that rows pile up there: while they
    do, those that pass on to the end come in its pace.
    """
    rows = [0.96, 0.02, 0.75]
    names = ("a", "b", "c")
    problem = Problem(
        model="chain",
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
        layers=tuple(
            Layer(name=f"l{s}", output_bytes=b) for s, b in zip(rows, (100, 1, 1), strict=True)
        ),
        network=Network(
            media=tuple(Medium(name=f"from {name}", capacity_bytes_per_s=100.0) for name in names),
            paths={(x, y): Path(media=((f"from {x}", 1),)) for x in names for y in names if x != y},
        ),
        costs={name: tuple(LayerCost(rows=(1,), forward_s=(s,)) for s in rows) for name in names},
        workload=Inference(batch=4, streaming=True),
    )
    stages = tuple(
        Stage(start=i, stop=i + 1, devices=(name,), shares=(1,)) for i, name in enumerate(names)
    )
    plan = Plan(
        planner="by hand",
        model="chain",
        stages=stages,
        micro_batch=1,
        n_micro_batches=4,
        training=False,
    )
    assert Direct(problem).run(plan).latency_s == pytest.approx(4.0)  # four rows of 100 bytes
