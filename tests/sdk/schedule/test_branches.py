"""Stages that are branches of a model: who takes what from whom, and gradients that come back from
several.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.schedule.test_programs import execute

from potluck.errors import PlanError
from potluck.records import Plan, Segment, Stage, Tensor
from potluck.schedule import policies
from potluck.schedule.micro_batches import divide
from potluck.schedule.pipeline import compile_inference, compile_training
from potluck.schedule.stage_graph import behind, path_lengths, wire
from potluck.schedule.validate import check

DIAMOND = ((), (0,), (0,), (0, 1, 2))  # a stem, two branches of it, and a head that reads all three


def tensor(name, **more):
    return Tensor(name=name, dtype="float32", row_bytes=4, gradient=True, **more)


def make(devices, n_micro_batches=3):
    """A plan of the diamond: stage p on `devices[p]`, each with its shares of 8 rows."""
    stages = tuple(
        Stage(
            start=p, stop=p + 1, devices=tuple(shares), shares=tuple(shares.values()), warm_up=depth
        )
        for p, (shares, depth) in enumerate(zip(devices, (5, 3, 3, 1), strict=True))
    )
    plan = Plan(
        planner="test", model="m", stages=stages, micro_batch=8, n_micro_batches=n_micro_batches
    )
    x = tensor("x")
    left = tensor("l")
    right = tensor("r")
    image = Tensor(name="image", dtype="float32", row_bytes=4)
    segments = (
        Segment(name="s0", start=0, stop=1, feeds=(image,), outputs=(x,), parameter_count=3),
        Segment(
            name="s1",
            start=1,
            stop=2,
            inputs=(x,),
            sources=(0,),
            outputs=(left,),
            parameter_count=3,
        ),
        Segment(
            name="s2",
            start=2,
            stop=3,
            inputs=(x,),
            sources=(0,),
            outputs=(right,),
            parameter_count=3,
        ),
        Segment(
            name="s3",
            start=3,
            stop=4,
            inputs=(left, x, right),
            sources=(1, 0, 2),
            outputs=(Tensor(name="loss", dtype="float32", row_bytes=4),),
            parameter_count=3,
        ),
    )
    return plan, segments


PLACES = {
    "a device each": [{"a": 8}, {"b": 8}, {"c": 8}, {"d": 8}],
    "head on the stem's device": [{"a": 8}, {"b": 8}, {"c": 8}, {"a": 8}],
    "both branches on one device": [{"a": 8}, {"b": 8}, {"b": 8}, {"c": 8}],
    "shares everywhere": [{"a": 5, "b": 3}, {"b": 2, "c": 6}, {"d": 8}, {"c": 4, "a": 4}],
}


def test_the_longest_way_to_the_end_counts():
    assert path_lengths(DIAMOND) == (3, 2, 2, 1)
    assert path_lengths(((), (), (0, 1))) == (2, 2, 1)
    assert path_lengths(((), (0,), (1,), (), (2, 3))) == (4, 3, 2, 2, 1)
    assert behind(DIAMOND) == ((1, 2, 3), (3,), (3,), ())


def test_two_branches_act_in_the_same_turn():
    order = check(policies.one_f_one_b(4, 2, [5, 3, 3, 1]), 2, before=DIAMOND)
    timestep = {str(action): timestep for timestep, action in order}
    assert timestep["1F0"] == timestep["2F0"] == 1
    assert timestep["3F0"] == 2
    assert timestep["1B0"] == timestep["2B0"]
    assert timestep["0B0"] == timestep["1B0"] + 1


def test_a_branch_that_wants_more_than_its_stem_gives_is_refused():
    schedule = policies.one_f_one_b(4, 2, [1, 2, 1, 1])
    with pytest.raises(
        PlanError, match=r"0B0 waits for ever for 1B0.\nstage 0: 0F0 0B0 <-- ERROR HERE"
    ):
        check(schedule, 2, before=DIAMOND)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(("seed", "n_rows"), [*enumerate([24, 23, 17, 9, 5, 2, 1, 37])])
def test_every_row_takes_its_way_and_gradients_add_up(name, seed, n_rows):
    plan, segments = make(PLACES[name])
    division = divide(plan, segments, n_rows)
    schedule = policies.POLICIES["1f1b"](replace(plan, n_micro_batches=len(division[0])))
    compiled = compile_training(
        plan, segments, {"name": "sgd", "lr": 0.1}, schedule=schedule, division=division
    )
    backs = []

    def rows_of(attrs):
        first = division[0][attrs["micro_batch"]].start
        return list(range(first + attrs["rows"][0], first + attrs["rows"][1]))

    kept = {}

    def run(device, attrs, inputs, n_outputs):
        kept[device, attrs["segment"], attrs["key"]] = attrs
        assert inputs == [rows_of(attrs)] * (3 if attrs["segment"] == "s3" else 1)
        return [rows_of(attrs)] * n_outputs

    def backward(device, attrs, inputs, n_outputs):
        rows = rows_of(kept.pop((device, attrs["segment"], attrs["key"])))
        # what comes back for each output
        times = {"s0": 1 + 10 + 100, "s1": 1, "s2": 1, "s3": 0}[attrs["segment"]]
        assert inputs == ([[row * times for row in rows]] if times else [])
        backs.append(attrs["segment"])
        # as l, x and r
        factors = {"s0": [], "s1": [10], "s2": [100], "s3": [1, 1, 1]}[attrs["segment"]]
        return [[row * factor for row in rows] for factor in factors]

    rng = random.Random(seed)
    execute(
        compiled, {"image": list(range(n_rows))}, run, backward, lambda *_: [0.0] * 3, rng.randrange
    )
    assert not kept
    assert set(backs) == {"s0", "s1", "s2", "s3"}


def test_gradients_of_several_takers_are_added_the_last_first():
    plan, segments = make(PLACES["a device each"], n_micro_batches=1)
    program = compile_training(plan, segments, {}).programs["a"]
    (added,) = [item for item in program.instructions if item.op == "add"]
    senders = [
        next(item.attrs["peer"] for item in program.instructions if value in item.outputs)
        for value in added.inputs
    ]
    assert senders == ["d", "c", "b"]


def test_a_stage_sends_a_tensor_straight_to_who_takes_it():
    plan, segments = make(PLACES["a device each"], n_micro_batches=1)
    compiled = compile_inference(replace(plan, training=False), segments)
    peers = {
        d: [i.attrs["peer"] for i in p.instructions if i.op == "send"]
        for d, p in compiled.programs.items()
    }
    assert peers == {"a": ["b", "c", "d"], "b": ["d"], "c": ["d"], "d": ["home"]}


def test_nothing_flows_back_behind_a_cut_without_gradients():
    """x carries a gradient as far as s1, but what s1 gives does not: neither stem nor s1 learn, and
    nobody waits.
    """
    still = replace(tensor("l"), gradient=False)
    segments = (
        Segment(name="s0", start=0, stop=1, outputs=(tensor("x"),), parameter_count=1),
        Segment(
            name="s1", start=1, stop=2, inputs=(tensor("x"),), outputs=(still,), parameter_count=1
        ),
        Segment(
            name="s2",
            start=2,
            stop=3,
            inputs=(still,),
            outputs=(tensor("loss"),),
            parameter_count=1,
        ),
    )
    stages = tuple(
        Stage(start=p, stop=p + 1, devices=(d,), shares=(8,)) for p, d in enumerate("abc")
    )
    plan = Plan(planner="test", model="m", stages=stages, micro_batch=8)
    assert wire(plan, segments, training=True).learns == (False, False, True)
    programs = compile_training(plan, segments, {}).programs
    ops = {
        device: [item.op for item in program.instructions] for device, program in programs.items()
    }
    assert ops == {
        "a": ["run", "send"],
        "b": ["recv", "run", "send"],
        "c": ["recv", "run", "backward", "send", "step"],
    }


def test_only_the_branch_that_learns_sends_a_gradient_back():
    plan, segments = make(PLACES["a device each"], n_micro_batches=1)
    still = replace(tensor("r"), gradient=False)
    head = replace(segments[3], inputs=(*segments[3].inputs[:2], still))
    segments = (segments[0], segments[1], replace(segments[2], outputs=(still,)), head)
    compiled = compile_training(plan, segments, {})
    assert [i.op for i in compiled.programs["c"].instructions] == ["recv", "run", "send"]
    (added,) = [item for item in compiled.programs["a"].instructions if item.op == "add"]
    assert len(added.inputs) == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sources": (0,)}, "takes 3 inputs from the layers"),
        ({"sources": (1, 0, 3)}, "takes 3 inputs from the layers"),
        ({"sources": (1, 1, 2)}, "s3 needs .*'x'.* s1 gives None"),
    ],
)
def test_refuses_inputs_from_nowhere(change, match):
    plan, segments = make(PLACES["a device each"])
    with pytest.raises(PlanError, match=match):
        compile_training(plan, (*segments[:3], replace(segments[3], **change)), {})
