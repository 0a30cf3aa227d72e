"""The adapter's decisions, by looks written by hand: order, plan, wait, switch, and no switch for
nothing.
"""

import random
from dataclasses import replace

import pytest

from potluck.adapt.adapter import (
    CLEAR_FRAC,
    FORGET_STEPS,
    NOTHING,
    ORDER,
    PLAN,
    STAY,
    SWITCH,
    WAIT,
    WORTH_FRAC,
    Adapter,
    StepsSeen,
    same_sums,
)
from potluck.adapt.conditions import DEVICE, MEDIUM, Conditions, under
from potluck.adapt.switch_cost import BESIDE_FRAC, LEAST_SCALE, STEPS_LOST, SwitchCost, delta
from potluck.planning import judge, make_plans
from potluck.records import (
    Device,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Training,
)

A = (DEVICE, "a")
B = (DEVICE, "b")
AIR = (MEDIUM, "air")
COST = LayerCost(rows=(1, 4), forward_s=(0.1, 0.4), backward_s=(0.2, 0.8))
PROBLEM = Problem(
    model="m",
    devices=(Device(name="a", memory_bytes=10**9), Device(name="b", memory_bytes=10**9)),
    network=Network(
        media=(Medium(name="air", capacity_bytes_per_s=1000.0),),
        paths={pair: Path(media=(("air", 1),)) for pair in (("a", "b"), ("b", "a"))},
    ),
    layers=tuple(
        Layer(name=f"l{i}", parameter_bytes=100, output_bytes=1, gradient_bytes=1) for i in range(4)
    ),
    costs={"a": (COST,) * 4, "b": (COST,) * 4},
    workload=Training(batch=8, micro_batch=4, optimizer_copies=2),
)


def plan(*stages):
    made = Plan(
        planner="by hand",
        model="m",
        stages=tuple(
            Stage(start=start, stop=stop, devices=(name,), shares=(4,), warm_up=2)
            for start, stop, name in stages
        ),
        micro_batch=4,
        n_micro_batches=2,
    )
    return judge(PROBLEM, made)


EVEN = plan((0, 2, "a"), (2, 4, "b"))
ON_A = plan((0, 4, "a"))
ON_B = plan((0, 4, "b"))


def look(step, *, steps_left=1000, step_s=1.0, predicted_s=1.0, **ratios):
    things = {"a": A, "b": B, "air": AIR}
    return StepsSeen(
        step=step,
        step_s=step_s,
        predicted_s=predicted_s,
        ratios={things[name]: ratio for name, ratio in ratios.items()},
        steps_left=steps_left,
    )


@pytest.mark.parametrize(
    ("ratios", "todo"),
    [
        ([1.02], NOTHING),
        ([0.98], NOTHING),
        ([1.08], ORDER),
        ([1.08, 1.0], ORDER),  # the same order would be found again, but nobody has asked yet
        ([1.08, 1.0, 1.0], PLAN),  # it lasts
        ([1.08, 1 / 1.08, 1.08], ORDER),  # it comes and goes
        ([1.12], PLAN),
        ([0.85], PLAN),  # faster: what was left out may be of use again
    ],
)
def test_small_changes_order_transfers_and_large_or_lasting_ones_plan(ratios, todo):
    adapter = Adapter()
    for number, ratio in enumerate(ratios):
        found = adapter.look(look(8 * (number + 1), a=ratio), EVEN)
    assert found == todo


@pytest.mark.parametrize(
    ("after_s", "steps_left", "action"),
    [(0.9, 1000, ORDER), (0.99, 1000, STAY), (0.9, 19, STAY), (1.1, 1000, STAY)],
)
def test_transfers_are_ordered_anew_where_that_pays(after_s, steps_left, action):
    adapter, each = Adapter(), look(8, a=1.0, air=1.08, steps_left=steps_left)
    assert adapter.look(each, EVEN) == ORDER
    decision = adapter.order(each, 1.0, after_s)
    assert decision.action == action
    assert "air carries at 0.96 of its profile's pace" in decision.words
    assert adapter.look(look(16, a=1.0, air=1.0), EVEN) == NOTHING  # it was ordered for this


def test_a_profile_that_errs_alike_everywhere_speaks_for_nobody_unseen():
    known = Conditions().times({A: 1.5, AIR: 2.0})
    assert known.of(B) == 1.5
    assert known.of((MEDIUM, "cable")) == 2.0
    assert Conditions().times({A: 0.5}).of(B) == 1.0


def test_a_change_of_one_speaks_for_nobody_unseen():
    known = Conditions().times({A: 1.1}).times({A: 3.0})
    assert known.of(A) == pytest.approx(3.3)
    assert known.of(B) == 1.1  # as its profile may err, too
    assert known.usual(A) == 1.1


def test_whom_no_step_shows_any_more_is_asked_and_is_usual_at_best():
    adapter = Adapter()
    adapter.look(look(8, a=1.2, b=1.0, air=1.0), EVEN)
    adapter.look(look(16, a=1.0, b=9.0, air=1.05), EVEN)
    assert adapter.doubtful({A: 1.0, B: 1.0, AIR: 1.0}) == ()
    assert adapter.doubtful({A: 1.0}) == (B,)  # the air is as good as usual
    adapter.update_slowness({B: 4.0}, 24)
    assert adapter.known.of(B) == 4.0
    adapter.update_slowness({B: 0.7}, 32)
    assert adapter.known.of(B) == 1.0
    assert adapter.doubtful({A: 1.0}) == ()
    adapter.update_slowness({A: 2.0}, 40)  # whose profile errs, by as much whenever it is asked
    assert adapter.known.of(A) == pytest.approx(2.4)


def test_conditions_slow_a_problem_down():
    slow = under(PROBLEM, Conditions(factors={A: 2.0, B: 1.0, AIR: 4.0}))
    assert slow.costs["a"][0].forward_s == (0.2, 0.8)
    assert slow.costs["a"][0].backward_s == (0.4, 1.6)
    assert slow.costs["b"] == PROBLEM.costs["b"]
    assert slow.network.media[0].capacity_bytes_per_s == 250.0


def test_a_switch_sends_what_is_missing_and_learns_what_it_cost():
    assert delta(EVEN, ON_A, PROBLEM) == {("b", "a"): 2 * 100 * 3}
    assert delta(ON_A, ON_A, PROBLEM) == {}
    cost = SwitchCost()
    predicted_s = cost.seconds(EVEN, ON_A, PROBLEM, 1.0)
    assert predicted_s == STEPS_LOST + BESIDE_FRAC * 0.6
    dearer = cost.learned(predicted_s, 3 * predicted_s)
    assert dearer.seconds(EVEN, ON_A, PROBLEM, 1.0) == pytest.approx(3 * predicted_s)
    again = dearer.learned(3 * predicted_s, predicted_s)
    assert again.seconds(EVEN, ON_A, PROBLEM, 1.0) == pytest.approx(2 * predicted_s)
    assert cost.learned(predicted_s, -1.0).scale == LEAST_SCALE


def decisions(adapter, looks, others=(ON_A,)):
    """What it decides at each of these looks at EVEN, until it switches."""
    for each in looks:
        if adapter.look(each, EVEN) != PLAN:
            continue
        now = under(PROBLEM, adapter.known)
        decision = adapter.choose(each, judge(now, EVEN), [judge(now, p) for p in others], now)
        yield decision
        if decision.action == SWITCH:
            return


@pytest.mark.parametrize(
    ("step_s", "actions"),
    [(14.0, [SWITCH]), (0.1, [WAIT, SWITCH])],  # of what is short, a look may be a hiccup
)
def test_a_device_that_stays_slow_is_left_once_that_pays(step_s, actions):
    took = {"step_s": step_s, "predicted_s": step_s}
    slow = [look(8, a=1.0, b=9.0, **took)]
    more = [look(8 * n, b=1.0, **took) for n in (2, 3, 4)]
    found = [*decisions(Adapter(), slow + more)]
    assert [each.action for each in found] == actions
    assert found[-1].plan.stages == ON_A.stages
    assert "b computes at 0.11 of its profile's pace" in found[-1].words
    assert found[-1].saved_frac * step_s * 984 > found[-1].cost_s


def test_a_small_saving_is_looked_at_twice():
    looks = [look(8, a=1.0, b=1.7), *(look(8 * n, a=1.0, b=1.0) for n in range(2, 9))]
    found = [*decisions(Adapter(), looks)]
    assert WORTH_FRAC < found[-1].saved_frac < CLEAR_FRAC
    assert [each.action for each in found] == [WAIT] * (len(found) - 1) + [SWITCH]


def test_a_change_that_is_over_at_the_next_look_switches_nothing():
    adapter = Adapter()
    took = {"step_s": 0.1, "predicted_s": 0.1}
    there_and_back = [
        look(8, a=1.0, b=9.0, **took),
        look(16, b=1 / 9, **took),
        look(24, b=1.0, **took),
    ]
    assert [each.action for each in decisions(adapter, there_and_back)] == [WAIT]
    assert adapter.look(look(32), EVEN) == NOTHING


def test_the_steps_to_go_must_pay_for_a_switch():
    found = [
        *decisions(Adapter(), [look(8, a=1.0, b=9.0, steps_left=1), look(16, b=1.0, steps_left=0)])
    ]
    assert [each.action for each in found] == [STAY]
    assert "do not pay" in found[0].words


def test_without_an_end_as_many_steps_again_are_reckoned_with():
    adapter = Adapter(step=100)
    first = replace(look(108, a=1.0, b=9.0, step_s=0.1), steps_left=None)
    adapter.look(first, EVEN)
    now = under(PROBLEM, adapter.known)
    decision = adapter.choose(first, judge(now, EVEN), [judge(now, ON_A)], now)
    assert decision.action == WAIT  # 8 steps to go


def test_a_plan_that_was_worse_than_predicted_is_remembered():
    adapter = Adapter()
    adapter.look(look(8, step_s=20.0, predicted_s=1.0), ON_A)
    adapter.look(look(16, a=1.0, b=9.0, step_s=1.0, predicted_s=1.0), EVEN)
    now = under(PROBLEM, adapter.known)
    decision = adapter.choose(look(16), judge(now, EVEN), [judge(now, ON_A)], now)
    assert decision.action == STAY


def test_what_was_not_seen_for_long_may_be_as_its_profile_says_and_ever_later():
    adapter = Adapter()
    adapter.look(look(8, a=1.0, b=9.0), EVEN)
    adapter.settle()
    adapter.look(look(FORGET_STEPS, a=1.0), ON_A)
    assert adapter.known.of(B) == 9.0
    assert adapter.look(look(8 + FORGET_STEPS, a=1.0), ON_A) == PLAN
    assert adapter.known.of(B) == 1.0
    adapter.look(look(16 + FORGET_STEPS, b=9.0), EVEN)
    adapter.look(look(16 + 2 * FORGET_STEPS, a=1.0), ON_A)
    assert adapter.known.of(B) == 9.0


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))]
)
def test_noise_alone_switches_nothing(seed):
    """Of 200 looks whose medians err by some percent, none leads to another plan."""
    rng, adapter = random.Random(seed), Adapter()
    others = [p for p in make_plans(PROBLEM).items if same_sums(EVEN, p, PROBLEM.layers)]
    best = others[0]
    for number in range(1, 200):
        true = {name: rng.lognormvariate(0, 0.04) for name in ("a", "b", "air")}
        known = {"a": A, "b": B, "air": AIR}
        ratios = {name: true[name] / adapter.known.of(known[name]) for name in true}
        each = look(8 * number, steps_left=10_000, **ratios)
        if adapter.look(each, best) == PLAN:
            now = under(PROBLEM, adapter.known)
            judged = [judge(now, p) for p in others]
            assert adapter.choose(each, judge(now, best), judged, now).action != SWITCH


def test_plans_that_train_alike_have_the_same_micro_batches_and_norms():
    shared = replace(ON_A, stages=(replace(ON_A.stages[0], devices=("a", "b"), shares=(3, 1)),))
    normed = [replace(layer, norm_values=4) for layer in PROBLEM.layers]
    assert same_sums(EVEN, ON_A, normed)
    assert same_sums(EVEN, shared, PROBLEM.layers)
    assert not same_sums(EVEN, shared, normed)
    assert not same_sums(EVEN, replace(EVEN, n_micro_batches=1), PROBLEM.layers)


def test_layers_that_see_micro_batches_keep_their_stages_size():
    smaller = replace(EVEN.stages[0], shares=(2,), warm_up=4, micro_batch=2)
    mixed = replace(EVEN, stages=(smaller, *EVEN.stages[1:]))
    first, *others = PROBLEM.layers
    assert same_sums(EVEN, mixed, PROBLEM.layers)
    assert not same_sums(EVEN, mixed, [replace(first, is_random=True), *others])
    assert not same_sums(EVEN, mixed, [replace(first, norm_values=4), *others])
    last = replace(others[-1], is_random=True, norm_values=4)
    assert same_sums(EVEN, mixed, [first, *others[:-1], last])
