"""Compiled programs do the right thing with every row, whatever the shares and the order of
events.
"""

import random
from collections import Counter, deque
from dataclasses import replace

import pytest

from potluck.errors import PlanError
from potluck.records import Plan, Segment, Stage, Tensor
from potluck.schedule import policies
from potluck.schedule.pipeline import compile_inference, compile_training
from potluck.schedule.rows import intervals
from potluck.schedule.stage_graph import chain
from potluck.schedule.weights import (
    AHEAD_BYTES,
    NamedState,
    compile_move,
    compile_pull,
    compile_push,
    holding,
    targets,
)
from potluck_wire.program import OPERATIONS, loads

SPLITS = {  # name -> per stage: devices and shares of a micro-batch, mostly of 8 rows
    "one device": [(("a",), (8,))],
    "one stage on three": [(("a", "b", "c"), (5, 2, 1))],
    "pipeline": [(("a",), (8,)), (("b",), (8,)), (("c",), (8,))],
    "shares on both sides": [(("a", "b"), (5, 3)), (("c", "d"), (2, 6))],
    "fan in and out": [(("a",), (8,)), (("b", "c", "d"), (3, 3, 2)), (("e",), (8,))],
    "a device in two stages": [(("a", "b"), (4, 4)), (("c",), (8,)), (("b", "a"), (3, 5))],
    "smaller before": [(("a",), (2,)), (("b",), (8,)), (("c",), (8,))],
    "larger before": [(("a",), (16,)), (("b",), (8,)), (("c",), (2,))],
    "sizes and shares": [(("a", "b"), (3, 1)), (("b", "c", "d"), (9, 2, 5)), (("e", "a"), (1, 1))],
    "sizes on one device": [(("a",), (4,)), (("a",), (16,)), (("a", "b"), (6, 2))],
}


def make(split, n_micro_batches=4, multiple=1):
    rows = [sum(shares) for _, shares in split]
    counts = [8 * n_micro_batches // n for n in rows]
    depths = policies.warm_ups_of_rows(rows, counts, chain(len(split)))
    stages = [
        Stage(
            start=p,
            stop=p + 1,
            devices=devices,
            shares=shares,
            warm_up=depth,
            micro_batch=sum(shares) if sum(shares) != 8 else None,
        )
        for p, ((devices, shares), depth) in enumerate(zip(split, depths, strict=True))
    ]
    plan = Plan(
        planner="test",
        model="m",
        stages=tuple(stages),
        micro_batch=8,
        n_micro_batches=n_micro_batches,
    )
    cut = [
        Tensor(name=f"t{p}", dtype="float32", row_bytes=4, gradient=True, multiple=multiple)
        for p in range(9)
    ]
    loss = Tensor(name="loss", dtype="float32", row_bytes=4)
    last = len(split) - 1
    segments = tuple(
        Segment(
            name=f"s{p}",
            start=p,
            stop=p + 1,
            feeds=(
                (Tensor(name="image", dtype="float32", row_bytes=4, multiple=multiple),)
                if p == 0
                else ()
            )
            + ((Tensor(name="label", dtype="int64", row_bytes=8),) if p == last else ()),
            inputs=(cut[p - 1],) if p else (),
            outputs=(cut[p],) if p < last else (loss,),
            parameter_count=7 + p,
            buffer_count=p,
        )
        for p in range(last + 1)
    )
    return plan, segments


def joined(parts):
    return [entry for rows in parts for entry in rows]


def added(parts):
    return [sum(column) for column in zip(*parts, strict=True)]


def execute(
    compiled, feeds, run, backward, vectors, pick=None, *, concat=joined, add=added, step=None
):
    """Carry out all programs by readiness; returns what home received: {(device, value): rows}.

    `run(device, attrs, inputs, n_outputs)` and `backward(...)` give the outputs; `vectors(device,
    attrs)` is the flat gradient; `pick(n)` chooses among n ready instructions; `step(device, attrs,
    vector)` hears of each step. Raises when nothing is ready but something is left.
    """
    values = {device: {} for device in compiled.programs}
    inbox = {device: {} for device in compiled.programs}
    for feed in compiled.feeds:
        inbox[feed.device]["home", feed.value] = feeds[feed.tensor][feed.start : feed.stop]
    home = {}
    steps = {}
    done = {device: set() for device in compiled.programs}
    todo = deque((d, i) for d, program in compiled.programs.items() for i in program.instructions)
    while todo:
        ready = [n for n, (d, i) in enumerate(todo) if _ready(i, values[d], inbox[d], done[d])]
        assert ready, f"deadlock with {len(todo)} instructions left"
        index = ready[pick(len(ready)) if pick else 0]
        device, item = todo[index]
        del todo[index]
        mine, attrs = values[device], item.attrs
        inputs = [mine[name] for name in item.inputs]
        if "takes" in attrs:
            inputs = [
                rows if take is None else rows[slice(*take)]
                for rows, take in zip(inputs, attrs["takes"], strict=True)
            ]
        if item.op == "recv":
            outputs = [inbox[device].pop((attrs["peer"], item.outputs[0]))]
        elif item.op == "send":
            if attrs["peer"] == "home":
                assert (device, attrs["name"]) not in home
                home[device, attrs["name"]] = inputs[0]
            else:
                assert (device, attrs["name"]) not in inbox[attrs["peer"]]
                inbox[attrs["peer"]][device, attrs["name"]] = inputs[0]
            outputs = []
        elif item.op == "slice":
            assert 0 <= attrs["start"] < attrs["stop"] <= len(inputs[0])
            outputs = [inputs[0][attrs["start"] : attrs["stop"]]]
        elif item.op == "concat":
            outputs = [concat(inputs)]
        elif item.op == "add":
            outputs = [add(inputs)]
        elif item.op == "gradients":
            outputs = [vectors(device, attrs)]
        elif item.op == "step":
            steps[device, attrs["segment"]] = inputs[0] if inputs else None
            if step is not None:
                step(device, attrs, steps[device, attrs["segment"]])
            outputs = []
        elif item.op == "run":
            outputs = run(device, attrs, inputs, len(item.outputs))
        elif item.op == "backward":
            outputs = backward(device, attrs, inputs, len(item.outputs))
        else:
            raise AssertionError(item.op)
        mine.update(zip(item.outputs, outputs, strict=True))
        done[device].add(item.id)
    assert not any(inbox.values()), "sent but never received"
    return home, steps


def _ready(item, values, inbox, done):
    if not done.issuperset(item.after) or any(name not in values for name in item.inputs):
        return False
    return item.op != "recv" or (item.attrs["peer"], item.outputs[0]) in inbox


def follow(compiled, plan, multiple=1, pick=None, vectors=None, division=None):
    """Run with rows as numbers: every stage passes its rows on, so each input must be exactly the
    rows it says.
    """
    starts = {
        f"s{p}": [part.start for part in division[p]]
        if division
        else range(0, plan.batch, stage.rows)
        for p, stage in enumerate(plan.stages)
    }
    batch = division[-1][-1].stop if division else plan.batch
    feeds = {"image": list(range(batch * multiple)), "label": list(range(batch))}
    kept, backs = {}, Counter()

    def rows_of(attrs, factor=multiple):
        first = starts[attrs["segment"]][attrs["micro_batch"]]
        return list(range((first + attrs["rows"][0]) * factor, (first + attrs["rows"][1]) * factor))

    def run(device, attrs, inputs, n_outputs):
        for rows in inputs:
            assert rows in (rows_of(attrs), rows_of(attrs, 1))
        if attrs["train"]:
            kept[device, attrs["segment"], attrs["key"]] = attrs
        return [rows_of(attrs)] * n_outputs

    def backward(device, attrs, inputs, n_outputs):
        forward = kept.pop((device, attrs["segment"], attrs["key"]))
        for rows in inputs:
            assert rows == rows_of(forward)
        if not inputs:
            assert attrs["scale"] == (forward["rows"][1] - forward["rows"][0]) / batch
        backs[attrs["segment"]] += forward["rows"][1] - forward["rows"][0]
        return [rows_of(forward)] * n_outputs

    home, steps = execute(
        compiled,
        feeds,
        run,
        backward,
        lambda device, attrs: vectors[device, attrs["segment"]],
        pick,
    )
    assert not kept, "a forward without its backward"
    return home, steps, backs


def gradients(plan, segments):
    return {
        (device, segment.name): [
            (i + 1) * 10**k for k in range(segment.parameter_count + segment.buffer_count)
        ]
        for stage, segment in zip(plan.stages, segments, strict=True)
        for i, device in enumerate(stage.devices)
    }


@pytest.mark.few(10)
@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("multiple", [1, 3])
@pytest.mark.parametrize("fed_whole", [False, True])
def test_training_sends_every_row_where_it_belongs_and_reduces_exactly(name, multiple, fed_whole):
    plan, segments = make(SPLITS[name], multiple=multiple)
    compiled = compile_training(plan, segments, {"name": "sgd", "lr": 0.1}, fed_whole=fed_whole)
    vectors = gradients(plan, segments)
    home, steps, backs = follow(compiled, plan, multiple, vectors=vectors)
    assert set(home) == {(r.device, r.value) for r in compiled.results}
    for result in compiled.results:  # the losses of all micro-batches in order
        last = plan.stages[-1]
        first, stop = intervals(last.shares)[last.devices.index(result.device)]
        firsts = range(0, plan.batch, last.rows)
        rows = [r for m in firsts for r in range((m + first) * multiple, (m + stop) * multiple)]
        assert home[result.device, result.value] == rows
        assert result.rows == (stop - first,) * plan.counts[-1]
    assert sum(len(rows) for rows in home.values()) == plan.batch * multiple
    assert backs == {segment.name: plan.batch for segment in segments}
    for stage, segment in zip(plan.stages, segments, strict=True):
        replicas = [vectors[device, segment.name] for device in stage.devices]
        total = [sum(column) for column in zip(*replicas, strict=True)]
        for device in stage.devices:
            assert steps[device, segment.name] == (total if len(replicas) > 1 else None)


@pytest.mark.long
@pytest.mark.parametrize("name", SPLITS)
def test_no_order_of_events_can_block_a_program(name):
    plan, segments = make(SPLITS[name])
    compiled = compile_training(plan, segments, {})
    for seed in range(20):
        rng = random.Random(seed)
        follow(compiled, plan, pick=rng.randrange, vectors=gradients(plan, segments))


@pytest.mark.few(5)
@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("policy", [policies.fill_drain, policies.one_f_one_b])
def test_any_policy_compiles(name, policy):
    plan, segments = make(SPLITS[name])
    compiled = compile_training(plan, segments, {}, schedule=policy(len(plan.stages), plan.counts))
    follow(compiled, plan, vectors=gradients(plan, segments))


@pytest.mark.parametrize("name", SPLITS)
def test_inference_brings_every_row_home(name):
    plan, segments = make(SPLITS[name], n_micro_batches=2)
    compiled = compile_inference(plan, segments)
    home, steps, _ = follow(compiled, plan)
    assert not steps
    for result in compiled.results:
        assert home[result.device, result.value] == list(range(result.start, result.stop))
    assert sorted(
        r for result in compiled.results for r in range(result.start, result.stop)
    ) == list(range(plan.batch))


@pytest.mark.parametrize("name", SPLITS)
def test_programs_keep_the_rules_of_the_wire(name):
    plan, segments = make(SPLITS[name])
    compiled = compile_training(plan, segments, {"name": "adamw"})
    sent, received = Counter(), Counter()
    for device, program in compiled.programs.items():
        assert loads(program.dumps()) == program
        known = set()
        for position, item in enumerate(program.instructions):
            assert item.id == position
            assert set(item.attrs) == OPERATIONS[item.op]
            assert known.issuperset(item.inputs), "uses a value before any instruction makes it"
            assert all(0 <= before < position for before in item.after)
            assert not known.intersection(item.outputs)
            known.update(item.outputs)
            assert known.issubset(compiled.value_bytes[device])
            if item.op == "send":
                sent[device, item.attrs["peer"], item.attrs["name"]] += 1
            if item.op == "recv":
                received[item.attrs["peer"], device, item.outputs[0]] += 1
        assert len(compiled.notes[device]) == len(program.instructions)
    received.update({(r.device, "home", r.value): 1 for r in compiled.results})
    sent.update({("home", f.device, f.value): 1 for f in compiled.feeds})
    assert sent == received
    assert set(sent.values()) == {1}


def test_one_tensor_without_a_batch_dimension_goes_once_to_each():
    plan, segments = make(SPLITS["shares on both sides"], n_micro_batches=1)
    mask = Tensor(name="mask", dtype="bool", row_bytes=64, multiple=0)
    segments = (
        replace(segments[0], outputs=(*segments[0].outputs, mask)),
        replace(segments[1], inputs=(*segments[1].inputs, mask)),
    )
    compiled = compile_training(plan, segments, {})
    masks = [
        i
        for p in compiled.programs.values()
        for i in p.instructions
        if i.op == "recv" and "mask" in i.outputs[0]
    ]
    assert len(masks) == 2  # c and d


def test_a_stage_with_nothing_to_learn_is_never_run_backward():
    plan, segments = make(SPLITS["pipeline"])
    still = replace(segments[0].outputs[0], gradient=False)
    segments = (
        replace(segments[0], outputs=(still,)),
        replace(segments[1], inputs=(still,)),
        segments[2],
    )
    compiled = compile_training(plan, segments, {})
    assert {i.op for i in compiled.programs["a"].instructions} == {"recv", "run", "send"}
    assert all(i.attrs["train"] for i in compiled.programs["a"].instructions if i.op == "run")


@pytest.mark.parametrize("n_statistics", [0, 5])
def test_replicas_with_nothing_to_learn_agree_on_their_statistics(n_statistics):
    plan, segments = make([(("a", "b"), (5, 3)), (("c",), (8,))])
    still = replace(segments[0].outputs[0], gradient=False)
    segments = (
        replace(segments[0], outputs=(still,), parameter_count=0, buffer_count=n_statistics),
        replace(segments[1], inputs=(still,)),
    )
    programs = compile_training(plan, segments, {"name": "adamw"}).programs
    steps = [[i for i in programs[device].instructions if i.op == "step"] for device in "ab"]
    assert [len(items) for items in steps] == ([1, 1] if n_statistics else [0, 0])
    for (item,) in filter(None, steps):
        assert item.inputs == ("ring0.all",)
        # no weight moves
        assert item.attrs["optimizer"] == {"name": "sgd", "lr": 0.0, "weight_decay": 0.0}


def test_refuses_segments_of_another_plan():
    plan, segments = make(SPLITS["pipeline"])
    with pytest.raises(PlanError, match="not the plan's stages"):
        compile_training(plan, segments[:2], {})
    other = make(SPLITS["pipeline"], multiple=2)[1]
    with pytest.raises(PlanError, match="s1 needs"):
        compile_training(plan, (segments[0], other[1], other[2]), {})


def test_push_and_pull_move_every_state_once():
    plan, segments = make(SPLITS["shares on both sides"])
    states = {
        s.name: [NamedState(name=f"{s.name}.{k}", nbytes=4) for k in range(2)] for s in segments
    }
    push, pull = compile_push(plan, segments, states), compile_pull(plan, segments, states)
    assert Counter(feed.device for feed in push.feeds) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert {result.device for result in pull.results} == {"a", "d"}  # who has most rows of a stage
    assert sorted(result.tensor for result in pull.results) == ["s0.0", "s0.1", "s1.0", "s1.1"]
    assert [i.op for i in push.programs["a"].instructions] == ["recv", "assign"] * 2
    for program in (*push.programs.values(), *pull.programs.values()):
        assert loads(program.dumps()) == program


def test_move_takes_from_itself_first_and_spreads_what_must_travel():
    old, old_segments = make([(("a", "b"), (4, 4)), (("c",), (8,))])
    new, new_segments = make([(("a",), (8,)), (("d", "c"), (4, 4))])
    states = {
        "s0": [NamedState(name="w0", nbytes=8)],
        "s1": [NamedState(name="w1", nbytes=8), NamedState(name="exp_avg:w1", nbytes=8)],
    }
    holders = holding(old, old_segments, states, 3)
    move = compile_move("move", holders, targets(new, new_segments, states))
    ops = {
        device: [i.op for i in program.instructions] for device, program in move.programs.items()
    }
    assert ops == {
        "a": ["state", "assign"],
        "b": [],
        "c": ["state", "send", "state", "send", "state", "assign"],
        "d": ["recv", "assign", "recv", "assign"],
    }
    assert all(loads(program.dumps()) == program for program in move.programs.values())
    assert move.programs["c"].instructions[0].attrs == {"segment": "3/s1", "names": ["w1"]}
    assert move.programs["c"].instructions[4].attrs == {
        "segment": "3/s1",
        "names": ["w1", "exp_avg:w1"],
    }
    with pytest.raises(PlanError, match="No device of the old plan holds w9"):
        compile_move(
            "move", holders, targets(new, new_segments, {"s0": [NamedState(name="w9", nbytes=1)]})
        )


def test_a_giver_reads_no_further_ahead_than_its_agent_can_hold():
    plan, segments = make([(("a",), (8,))])
    other = replace(plan, stages=(replace(plan.stages[0], devices=("b",)),))
    states = {"s0": [NamedState(name=f"w{i}", nbytes=AHEAD_BYTES // 2) for i in range(4)]}
    move = compile_move(
        "move", holding(plan, segments, states, 0), targets(other, segments, states)
    )
    giver = move.programs["a"].instructions
    sends = [i.id for i in giver if i.op == "send"]
    waits = [[after for after in i.after if after in sends] for i in giver if i.op == "state"]
    assert waits == [[], [], [sends[0]], [sends[1]]]


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_compiled_is_what_a_device_accepts(split):
    plan, segments = make(SPLITS[split])
    states = {segment.name: [NamedState(name="layer.weight", nbytes=8)] for segment in segments}
    for compiled in (
        compile_training(plan, segments, {"name": "adamw", "lr": 0.01}),
        compile_inference(plan, segments),
        compile_push(plan, segments, states),
        compile_pull(plan, segments, states),
        compile_move("move", holding(plan, segments, states, 1), targets(plan, segments, states)),
    ):
        for program in compiled.programs.values():
            assert loads(program.dumps()) == program
