"""Standbys: who lacks what, how it stays in step, and that every value it waits for is posted to
it.
"""

from dataclasses import replace

import pytest
from tests.sdk.schedule.test_programs import make

from potluck.records import Plan, Stage
from potluck.schedule.pipeline import compile_training
from potluck.schedule.standby import (
    COPY,
    REPLAY,
    Standby,
    compile_follow,
    followed_bytes,
    refined,
    standbys,
)
from potluck_wire.program import loads

OPTIMIZER = {"name": "adamw", "lr": 0.01}


def plan_of(*stages):
    """From rows (start, stop, devices, shares)."""
    made = tuple(
        Stage(start=a, stop=b, devices=devices, shares=shares) for a, b, devices, shares in stages
    )
    return Plan(planner="test", model="m", stages=made, micro_batch=8, n_micro_batches=2)


def test_a_plan_is_cut_where_another_one_is_on_the_same_devices():
    old = plan_of((0, 3, ("a",), (8,)), (3, 4, ("b", "c"), (5, 3)))
    new = plan_of((0, 2, ("c",), (8,)), (2, 4, ("a",), (8,)))
    assert [(s.start, s.stop, s.devices, s.shares) for s in refined(old, new).stages] == [
        (0, 2, ("a",), (8,)),
        (2, 3, ("a",), (8,)),
        (3, 4, ("b", "c"), (5, 3)),
    ]


def test_who_lacks_a_stage_replays_it_or_copies_its_gradients_whichever_is_less():
    old, segments = make([(("a",), (8,)), (("b",), (8,)), (("c", "d"), (5, 3))], n_micro_batches=2)
    new = replace(old, stages=tuple(replace(s, devices=("b",), shares=(8,)) for s in old.stages))
    big = tuple(replace(segment, parameter_count=1000) for segment in segments)
    assert standbys(old, big, new) == (
        Standby(stage=0, devices=("b",), way=REPLAY),
        Standby(stage=2, devices=("b",), way=COPY),  # its owners sum by shares
    )
    # 7 parameters: 28 bytes against 16 rows of image and gradient
    assert standbys(old, segments, new)[0].way == COPY
    assert followed_bytes(old, big, standbys(old, big, new)) == 16 * (4 + 4) + 4 * (1000 + 2)


CASES = {
    "replay": ([(("a",), (8,)), (("b",), (8,)), (("c",), (8,))], 1000),
    "copy": ([(("a",), (8,)), (("b",), (8,)), (("c",), (8,))], 0),
    "copy of a shared stage": ([(("a", "b"), (5, 3)), (("c", "b"), (4, 4))], 1000),
}


def stem_stands_still(segments):
    """The same, but no gradient comes back to the first stages."""
    cut = replace(segments[-1].inputs[0], gradient=False)
    still = [replace(s, outputs=(replace(s.outputs[0], gradient=False),)) for s in segments[:-1]]
    still[1:] = [replace(s, inputs=(replace(s.inputs[0], gradient=False),)) for s in still[1:]]
    return (*still, replace(segments[-1], inputs=(cut,)))


@pytest.mark.few(5)
@pytest.mark.parametrize("statistics", [0, 1, 1000])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_all_that_a_standby_waits_for_is_posted_to_it(case, learns, statistics):
    split, parameters = CASES[case]
    plan, segments = make(split, n_micro_batches=2)
    segments = tuple(
        replace(s, parameter_count=parameters + 1, buffer_count=statistics) for s in segments
    )
    segments = segments if learns else stem_stands_still(segments)
    new = replace(plan, stages=tuple(replace(s, devices=("x",), shares=(8,)) for s in plan.stages))
    every = standbys(plan, segments, new)
    train = compile_training(plan, segments, OPTIMIZER, standbys=every, to="6/follow")
    follow = compile_follow("follow", plan, segments, OPTIMIZER, every)
    posted = {
        (device, item.attrs["peer"], item.attrs["name"])
        for device, program in train.programs.items()
        for item in program.instructions
        if "to" in item.attrs
    }
    fed = {("home", feed.device, feed.value) for feed in follow.feeds}
    waited = {
        (item.attrs["peer"], device, item.outputs[0])
        for device, program in follow.programs.items()
        for item in program.instructions
        if item.op == "recv"
    }
    assert waited == posted | fed
    changing = {s.name for s in segments} if learns or statistics else {segments[-1].name}
    own = [i for i in follow.programs["x"].instructions if "segment" in i.attrs]
    assert {i.attrs["segment"] for i in own} == changing
    assert {i.attrs["segment"] for i in own if i.op == "backward"} <= {
        s.name for s in segments[0 if learns else -1 :]
    }
    assert all(i.attrs["train"] for i in own if i.op == "run")
    stepping = {i.attrs["segment"] for i in own if i.op == "step"}
    assert stepping | {i.attrs["segment"] for i in own if i.op == "run"} == changing
    assert stepping == changing if learns else segments[-1].name in stepping
    for program in (*train.programs.values(), *follow.programs.values()):
        assert loads(program.dumps()) == program


def test_a_step_with_standbys_is_the_same_step():
    plan, segments = make([(("a",), (8,)), (("b", "c"), (5, 3))], n_micro_batches=2)
    segments = tuple(replace(segment, parameter_count=1000) for segment in segments)
    every = (
        Standby(stage=0, devices=("x",), way=REPLAY),
        Standby(stage=1, devices=("x",), way=COPY),
    )
    plain = compile_training(plan, segments, OPTIMIZER)
    shown = compile_training(plan, segments, OPTIMIZER, standbys=every, to="6/follow")
    for device, program in plain.programs.items():
        copies = {
            v for i in shown.programs[device].instructions if "to" in i.attrs for v in i.inputs
        }
        others = [
            (i.op, i.inputs, i.outputs)
            for i in shown.programs[device].instructions
            if "to" not in i.attrs and not copies.intersection(i.outputs)
        ]
        assert others == [(i.op, i.inputs, i.outputs) for i in program.instructions]
