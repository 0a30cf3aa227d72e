"""Several steps as one program: every forward takes the weights that the rule says, every update
has the gradients of all rows of its own step, and nothing blocks.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.sdk.schedule.test_programs import SPLITS, execute, make

from potluck.errors import PlanError
from potluck.schedule import compile_late_training, policies
from potluck.schedule.ir import BACKWARD, FORWARD, Action, loads
from potluck.schedule.step_update import alike
from potluck.schedule.validate import check_one_step_late
from potluck_wire.program import loads as read

N_ROWS = 32  # of a whole step
SGD = {"name": "sgd", "lr": 0.1}


def made(name):
    """Statistics of replicas do not come late."""
    plan, segments = make(SPLITS[name])
    return plan, tuple(replace(segment, buffer_count=0) for segment in segments)


def late(name, rows, **more):
    plan, segments = made(name)
    return compile_late_training(plan, segments, alike(SGD, len(segments)), rows, **more)


class Rule:
    """Segments that know which updates their weights have, and of which rows a gradient is."""

    def __init__(self, rows):
        self.steps = [j for j, n in enumerate(rows) for _ in range(n)]  # of each row
        self.updates = Counter()  # by device and segment
        self.kept, self.rows = {}, {}

    def run(self, device, attrs, inputs, n_outputs):
        """Rows go on as they are; all of one step, and they say of which."""
        (rows,) = {tuple(rows) for rows in inputs}
        (step,) = {self.steps[row] for row in rows}
        place = device, attrs["segment"]
        assert self.updates[place] == max(0, step - 1), "w_j has the gradients up to g_{j-2}"
        self.kept[(*place, attrs["key"])] = rows, step
        return [[*rows]] * n_outputs

    def backward(self, device, attrs, inputs, n_outputs):
        place = device, attrs["segment"]
        rows, step = self.kept.pop((*place, attrs["key"]))
        assert self.updates[place] <= max(0, step - 1) + 1, "the weights of then are still there"
        if not inputs:
            assert attrs["scale"] == len(rows) / self.steps.count(step)
        self.rows.setdefault(place, []).extend(rows)
        return [[*rows]] * n_outputs

    def vector(self, device, attrs):
        assert attrs["taken"]
        rows = self.rows.pop((device, attrs["segment"]), [])
        return [sum(1 << row for row in rows)] * (7 + int(attrs["segment"][1:]))

    def step(self, device, attrs, vector):
        place = device, attrs["segment"]
        rows = [row for row, step in enumerate(self.steps) if step == self.updates[place]]
        assert attrs["late"]
        assert {*vector} == {sum(1 << row for row in rows)}
        self.updates[place] += 1


@pytest.mark.few(12)
@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("rows", [(32,) * 5, (32, 32, 32, 5), (32, 1), (32,), (32,) * 9])
@pytest.mark.parametrize("fed_whole", [False, True])
def test_forwards_lack_one_step_and_updates_none_of_their_rows(name, rows, fed_whole):
    compiled = late(name, rows, fed_whole=fed_whole)
    feeds = {"image": [*range(sum(rows))], "label": [*range(sum(rows))]}
    for seed in range(3):
        rule, rng = Rule(rows), random.Random(seed)
        home, _ = execute(
            compiled, feeds, rule.run, rule.backward, rule.vector, rng.randrange, step=rule.step
        )
        assert not rule.kept
        assert {*rule.updates.values()} == {len(rows)}
        found = {}
        for result in compiled.results:
            found.setdefault(result.step, []).extend(home[result.device, result.value])
        assert [sorted(found[j]) for j in range(len(rows))] == [
            [row for row, step in enumerate(rule.steps) if step == j] for j in range(len(rows))
        ]
    assert compiled.n_steps == len(rows)
    for program in compiled.programs.values():
        assert read(program.dumps()) == program


def test_sums_over_replicas_wait_for_no_other_computing_and_none_for_them():
    """But for the update that takes them."""
    program = late("one stage on three", (N_ROWS,) * 4).programs["a"]
    of_ring = [
        item.id
        for item in program.instructions
        if any(name.startswith("ring") for name in item.outputs) and item.op != "recv"
    ]
    assert len(of_ring) == 4 * 6  # slices, sums and the whole, of each step
    for item in program.instructions:
        assert not (item.id in of_ring and item.after)
        assert not set(item.after) & set(of_ring)


STEPS = [[0, 0, 1, 1, 2, 2]] * 2  # two micro-batches a step, on two stages


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0F1,0F2,0F3,0F4,0B0,0B1,0B2,0B3,0F5,0B4,0B5", "0F4 begins step 2"),
        ("0F0,0F1,0B0,0F2,0F3,0F4,0B1,0B2,0B3,0F5,0B4,0B5", "0F4 begins step 2"),
        ("0F0,0F1,0F2,0F3,0B2,0B0,0B1,0B3,0F4,0F5,0B4,0B5", "0B2 is of step 1"),
        ("0F0,0F1,0F2,0F3,0B0,0B3,0B1,0B2,0F4,0F5,0B4,0B5", "0B3 is of step 1"),
        ("0F0,0F1,0F2,0F3,0I0,0W0", "0I0 is part of a backward"),
    ],
)
def test_draws_a_schedule_that_would_be_later_up_to_the_error(text, words):
    with pytest.raises(PlanError, match=words) as raised:
        check_one_step_late(loads(text), STEPS)
    assert "<-- ERROR HERE" in str(raised.value)
    assert "schedule='1f1b'" in raised.value.next_step


@pytest.mark.parametrize("text", ["0F0,0F1,0F2,0F3,0B0,0B1,0F4,0B2,0F5,0B3,0B4,0B5"])
def test_a_whole_step_ahead_is_not_later(text):
    check_one_step_late(loads(text), STEPS)


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", range(40))
def test_warm_ups_of_one_step_and_one_more_are_never_later(seed):
    """F_{m+K} comes after B_m: with K up to M + 1 the last backward but one step is done."""
    rng = random.Random(seed)
    n_stages, n_micro_batches = rng.randint(1, 5), rng.randint(1, 6)
    sizes = [n_micro_batches] * rng.randint(1, 6) + [rng.randint(1, n_micro_batches)]
    steps = [[j for j, n in enumerate(sizes) for _ in range(n)]] * n_stages
    depths = sorted((rng.randint(1, n_micro_batches + 1) for _ in range(n_stages)), reverse=True)
    check_one_step_late(policies.one_f_one_b(n_stages, sum(sizes), depths), steps)
    if len(sizes) > 3:
        later = [n_micro_batches + 2] * n_stages
        with pytest.raises(PlanError, match="more than one step late"):
            check_one_step_late(policies.one_f_one_b(n_stages, sum(sizes), later), steps)


def test_the_same_actions_as_of_one_step_with_all_rows():
    """The pipeline is not emptied in between: nothing but updates tells it from one long step."""
    plan, segments = made("pipeline")
    order = policies.POLICIES["1f1b"]
    compiled = compile_late_training(plan, segments, alike(SGD, 3), (N_ROWS,) * 3, order=order)
    long = replace(plan, n_micro_batches=12)
    expected = policies.POLICIES["1f1b"](long)
    for p, device in enumerate(plan.devices):
        labels = [
            note.label
            for item, note in zip(
                compiled.programs[device].instructions, compiled.notes[device], strict=True
            )
            if item.op in ("run", "backward")
        ]
        assert labels == [str(action) for action in expected[p]]
        assert Action(p, FORWARD, 11) in expected[p]
        assert Action(p, BACKWARD, 11) in expected[p]
