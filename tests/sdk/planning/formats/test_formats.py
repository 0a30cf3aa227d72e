"""The peers' formats: what is written reads back, what their planners print is judged, what is
wrong is named.
"""

import json

import pytest

import potluck
from potluck.errors import FileError, PlanError, UserError
from potluck.planning import judge
from potluck.planning.formats import judged, metis, pipedream
from potluck.planning.registry import ask
from potluck.profile.estimate import imported
from potluck.records import Inference, Training

# In the format of PipeDream's profiler: a chain of a convolution, its activation, a skip, and a
# layer of two outputs.
GRAPH = """node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=4096.0, \
parameter_size=0.000
node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.500, backward_compute_time=3.000, \
activation_size=8192.000, parameter_size=7168.000
node10 -- Add -- forward_compute_time=0.100, backward_compute_time=0.200, activation_size=[1024.0; 1024.0], \
parameter_size=0.000
node3 -- ReLU(inplace) -- forward_compute_time=0.250, backward_compute_time=0.500, activation_size=8192.000, \
parameter_size=0.000
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node10
\tnode2 -- node10
"""


@pytest.fixture(scope="module")
def problem():
    """Four devices of four kinds: the phone of this home cannot train."""
    profile = potluck.estimate("family", "bert-small", max_layers=8, rows=(1, 8, 32))
    return profile.with_device("raspberry-pi-5").problem(Training(batch=32))


def test_reads_a_profile_in_running_order():
    graph = pipedream.read(GRAPH)
    assert [operator.name for operator in graph.operators] == ["node1", "node2", "node3", "node10"]
    conv, last = graph.operators[1], graph.operators[-1]
    assert (conv.forward_s, conv.backward_s) == pytest.approx((1.5e-3, 3e-3))
    assert (conv.activation_bytes, conv.parameter_bytes, last.activation_bytes) == (
        8192,
        7168,
        2048,
    )


def test_a_profile_becomes_a_model_whose_cuts_carry_the_skip():
    model = pipedream.model_of(pipedream.read(GRAPH), rows=32)
    # per row: conv; conv kept for the sum, and its activation; the sum
    assert model.live_bytes() == (256, 512, 64)
    costs = pipedream.costs_of(pipedream.read(GRAPH), rows=32)
    assert [cost.forward_s for cost in costs] == [(1.5e-3,), (2.5e-4,), (1e-4,)]


@pytest.mark.long
def test_a_profile_of_pipedream_is_planned_on_a_home(problem):
    profile = imported("asteroid-a-1000", GRAPH, rows=32, max_layers=3, name="tiny")
    on_home = profile.problem(Training(batch=32))
    assert [layer.parameter_bytes for layer in on_home.layers] == [7168, 0, 0]
    assert [cost.backward_s for cost in on_home.costs["nano-1"]] == [(3e-3,), (5e-4,), (2e-4,)]
    best = potluck.plan(profile, Training(batch=32)).best
    assert 0 < best.latency_s <= 5.55e-3 + 0.01  # one device computes 5.55 ms
    written = pipedream.write(pipedream.of_problem(problem, rows=8, device="laptop-1"))
    again = imported("family", written, rows=8, max_layers=8).problem(Training(batch=32))
    assert [layer.output_bytes for layer in again.layers] == [
        layer.output_bytes for layer in problem.layers
    ]


def test_graphs_round_trip(problem):
    for graph in (pipedream.read(GRAPH), pipedream.of_problem(problem, rows=8)):
        text = pipedream.write(graph)
        again = pipedream.read(text)
        assert pipedream.write(again) == text
        assert again.edges == graph.edges
        for a, b in zip(again.operators, graph.operators, strict=True):
            assert (a.name, a.description, a.activation_bytes) == (
                b.name,
                b.description,
                b.activation_bytes,
            )
            assert a.forward_s == pytest.approx(b.forward_s, abs=1e-6)


def test_an_export_says_what_the_problem_says(problem):
    graph = pipedream.of_problem(problem, rows=8, device="laptop-1")
    operators = graph.operators[1:]
    assert len(operators) == len(problem.layers)
    assert [o.parameter_bytes for o in operators] == [
        layer.parameter_bytes for layer in problem.layers
    ]
    times = [cost.forward_s[1] for cost in problem.costs["laptop-1"]]
    assert [operator.forward_s for operator in operators] == pytest.approx(times)


def staged(problem, ends):
    """The export with stages, as PipeDream's optimizer writes it."""
    lines = pipedream.write(pipedream.of_problem(problem, rows=8)).splitlines()
    stage = [0, *(sum(i >= end for end in ends) for i in range(len(problem.layers)))]
    return "\n".join(
        f"{line} -- stage_id={stage[i]}" if i < len(stage) else line for i, line in enumerate(lines)
    )


def test_a_staged_graph_is_judged_with_the_devices_that_serve_it_best(problem):
    plans = judged(staged(problem, [3]), problem)
    assert [(stage.start, stage.stop) for stage in plans.best.stages] == [(0, 3), (3, 8)]
    assert plans.best.planner == "pipedream"
    assert plans.best.latency_s == judge(problem, plans.best).latency_s
    assert plans.best.latency_s == min(plan.latency_s for plan in plans)
    assert len({plan.devices for plan in plans}) > 3


def test_the_printed_partition_is_judged_with_its_replicas(problem):
    printed = (
        "(Split start, split end) / compute time taken per stage / replication factor per stage:\n"
    )
    printed += "(0, 5) 0.123 2\n(5, 8) 0.0456 1\n\nTotal number of stages: 2\n"
    assert judged(printed, problem).best.stages[0].stop == 5
    equal = potluck.estimate(
        "asteroid-a-1000", "bert-small", max_layers=8, rows=(1, 8, 32)
    ).problem(Training(batch=32))
    best = judged(printed, equal).best
    assert [(stage.stop, len(stage.devices)) for stage in best.stages] == [(5, 2), (8, 1)]


FACTS = (
    "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=3.0, parameter_size=4.0"
)
METIS = """rank, cost, node_sequence, device_groups, strategies(dp_deg, tp_deg), batches, layer_partition
1, 23.7, (<DeviceType.{b}: 'b'>, <DeviceType.{a}: 'a'>, <DeviceType.{c}: 'c'>, <DeviceType.{d}: 'd'>), \
[2, 2], [(2, 1), [2, 1]], 4, [0, 4, 8]
2, 2728.0, (<DeviceType.{a}: 'a'>, <DeviceType.{b}: 'b'>, <DeviceType.{c}: 'c'>, <DeviceType.{d}: 'd'>), \
[4], [(2, 2)], 8, [0, 8]
3, 2931.0, (<DeviceType.{a}: 'a'>, <DeviceType.{b}: 'b'>, <DeviceType.{c}: 'c'>, <DeviceType.{d}: 'd'>), \
[1, 1, 2], [(1, 1), (1, 1), (2, 1)], 8, [0, 4, 4, 8]
"""


def test_a_ranking_of_metis_is_judged_without_what_we_cannot_run(problem):
    types = metis.types_of(problem)
    assert [len(members) for members in types.values()] == [1, 1, 1, 1]
    plans = judged(METIS.format(**dict(zip("abcd", types, strict=True))), problem)
    assert len(plans) == 1  # tensor parallel, and an empty stage: left out
    (first, second) = plans.best.stages
    assert first.devices == (*types["V100"], *types["A100"])
    assert (plans.best.n_micro_batches, second.start) == (4, 4)


@pytest.mark.parametrize(
    ("was", "is_now"),
    [("4, [0, 4, 8]", "0, [0, 4, 8]"), ("[0, 4, 8]", "[, 4, 8]"), ("[2, 2]", f"[2, {'9' * 5000}]")],
    ids=["no micro-batches", "no number", "digits without end"],
)
def test_a_plan_of_metis_that_cannot_be_is_none(problem, was, is_now):
    types = metis.types_of(problem)
    text = METIS.format(**dict(zip("abcd", types, strict=True))).replace(was, is_now)
    with pytest.raises(PlanError):
        judged(text, problem)


def test_numbers_in_a_graph_of_pipedream_have_any_length():
    name = "node" + "1" * 5000
    with pytest.raises(FileError, match="stage_id"):
        pipedream.read(f"{name} -- Linear -- {FACTS} -- stage_id={'1' * 5000}")
    assert pipedream.read(f"{name} -- Linear -- {FACTS}").operators[0].name == name


def test_what_metis_reads_says_what_the_problem_says(problem):
    files = metis.files(problem)
    name, members = next(iter(metis.types_of(problem).items()))
    document = json.loads(files[f"profile/DeviceType.{name}_tp1_bs8.json"])
    times = document["execution_time"]["layer_compute_total_ms"]
    costs = problem.costs[members[0]]
    assert times == pytest.approx(
        [1e3 * (cost.forward_s[1] + cost.backward_s[1]) for cost in costs]
    )
    assert document["model"]["parameters"]["parameters_per_layer_bytes"] == [
        x.parameter_bytes for x in problem.layers
    ]
    nodes = json.loads(files["clusterfile.json"])
    assert len(nodes) == len(files["hostfile"].splitlines()) == len(problem.devices)
    air = problem.network.media[0].capacity_bytes_per_s
    for node in nodes.values():
        # up to the access point and down again
        assert node["inter_bandwidth"] * 2**20 * 1e3 == pytest.approx(air / 2)
    assert "--gbs=32" in files["README.txt"]


def test_metis_gets_no_inference_and_no_more_kinds_than_it_knows(problem):
    from dataclasses import replace

    with pytest.raises(UserError, match="training only"):
        metis.files(replace(problem, workload=Inference()))
    profile = potluck.estimate("family", "bert-small", max_layers=4, rows=(1, 8))
    profile = profile.with_device("raspberry-pi-5").with_device("raspberry-pi-4")
    with pytest.raises(UserError, match="knows 4 kinds of devices; this home has 5"):
        metis.files(profile.problem(Training(batch=8)))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("node3 -- node10", "node3 -- node11", "an edge joins node11, and there is no such node"),
        ("\tnode1 -- node2", "\tnode10 -- node2", "there is a cycle: "),
        (
            "forward_compute_time=1.500",
            "forward_compute_time=-1.5",
            "line 2: forward_compute_time: expected a number",
        ),
        (
            "forward_compute_time=1.500",
            "forward_compute_time=nan",
            "expected a number, zero or more, got 'nan'",
        ),
        ("activation_size=4096.0, ", "", "line 1: expected the facts"),
        ("node3 -- ReLU", "node2 -- ReLU", "line 4: there are two nodes called node2"),
        (
            "\tnode1 -- node2",
            "\tnode1",
            "line 5: expected `name -- description -- facts`, got 'node1'",
        ),
    ],
)
def test_says_what_is_wrong_with_a_graph(old, new, text):
    assert old in GRAPH
    with pytest.raises(FileError) as error:
        pipedream.read(GRAPH.replace(old, new))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", "no plan that is known here. Known: a potluck plan, a PipeDream graph.txt"),
        ("(0, 5) 0.1 1\n(5, 9) 0.1 1\n", "covers 9 layers; bert-small has 8"),
        ("(0, 5) 0.1 1\n(6, 8) 0.1 1\n", "has (6, 8) after 5"),
        ("(0, 5) 0.1 3\n(5, 8) 0.1 2\n", "takes 5 devices; this home has 4"),
        (
            METIS.format(a="H100", b="V100", c="P100", d="T4"),
            "names H100; this home has A100, V100, P100, T4",
        ),
        (
            METIS.format(a="A100", b="V100", c="P100", d="T4").replace("[0, 4, 8]", "[0, 4, 9]"),
            "covers 9 layers",
        ),
    ],
)
def test_a_plan_for_something_else_is_refused(problem, text, expected):
    with pytest.raises(PlanError) as error:
        judged(text, problem)
    assert expected in str(error.value)


def test_stages_that_are_no_runs_of_neighbours_are_refused(problem):
    text = staged(problem, [3, 5]).replace("stage_id=2", "stage_id=0")
    with pytest.raises(PlanError, match="not a run of neighbouring layers"):
        judged(text, problem)


def test_the_baselines_of_the_literature_can_be_asked_by_name(problem):
    plans = ask(problem, "gpipe")
    assert {plan.planner for plan in plans} == {"gpipe"}
    with pytest.raises(UserError, match="there is no planner 'gpie'"):
        potluck.plan(
            potluck.estimate("family", "bert-small", max_layers=4),
            Training(batch=8),
            planner="gpie",
        )
