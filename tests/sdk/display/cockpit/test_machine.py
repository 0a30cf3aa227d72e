"""What the cockpit shows and orders, event by event, without widgets, threads or clocks."""

from dataclasses import replace

import pytest
from tests.sdk.display.cockpit import observations

from potluck.adapt.adapter import Decision
from potluck.display.cockpit.machine import (
    MOST_W,
    Advanced,
    CockpitMachine,
    HomeObserved,
    MakePlans,
    OrderDone,
    PairDevice,
    Planned,
    ShowAll,
    SwitchTo,
)
from potluck.display.cockpit.page_messages import (
    Go,
    Imagine,
    Imagined,
    Limits,
    PageOpened,
    PairWith,
    Preview,
    SetLimits,
)
from potluck.display.cockpit.plan_sections import name_of
from potluck.records import Event, Trace
from potluck.run.history import Recovery

BOTH, ALONE = observations.plan("a", "b"), observations.plan("a", planner="single", latency_s=0.9)


def words_of(machine):
    return [event["words"] for event in machine.state.events.since(0)[1]]


def look(machine, observation, now_s=1.0):
    return machine.handle(HomeObserved(observation=observation), now_s)


@pytest.fixture
def machine():
    """At work on BOTH, with ALONE as the other plan."""
    made = CockpitMachine()
    run = observations.running(BOTH)
    (order,) = look(
        made, observations.seen(observations.member("a"), observations.member("b"), run=run)
    )
    made.handle(Planned(order=order.order, plans=(BOTH, ALONE)), 1.1)
    return made


def test_an_empty_home_says_that_nothing_runs():
    machine = CockpitMachine()
    assert look(machine, observations.seen()) == []
    assert machine.state.sections["run"] == {}
    assert machine.state.sections["devices"] == {}


def test_devices_show_layers_memory_power_and_who_is_at_work(machine):
    shown = machine.state.sections["devices"]["b"]
    assert shown["layers"] == [[2, 4]]
    assert (shown["used"], shown["allowed"]) == (4000, 1 << 30)
    assert (shown["watts"], shown["estimated"]) == (10.0, True)
    assert shown["lit"]
    assert machine.state.sections["media"]["air"]["devices"] == ["a", "b"]


@pytest.mark.parametrize("watts", [1e7, 1e39, 1e300])
def test_power_that_no_device_has_can_be_drawn(machine, watts):
    look(
        machine,
        replace(machine.observation, members=(observations.member("a", watts=watts, at_s=2.0),)),
    )
    _, rows = machine.state.watts.since(0)
    assert rows[-1][2] == MOST_W


def test_a_device_that_left_is_told_of_and_comes_back(machine):
    run = observations.running(BOTH)
    look(machine, observations.seen(observations.member("a"), observations.gone("b"), run=run))
    assert machine.state.sections["devices"]["b"]["status"] == "gone"
    assert not machine.state.sections["devices"]["b"]["lit"]
    look(machine, observations.seen(observations.member("a"), observations.member("b"), run=run))
    assert "b is back" in words_of(machine)
    assert any("b is gone" in words and "no sign of life" in words for words in words_of(machine))


def test_plans_are_made_once_for_each_plan_in_force(machine):
    run = observations.running(BOTH, steps=9)
    assert look(machine, observations.seen(observations.member("a"), run=run)) == []
    (order,) = look(
        machine, observations.seen(observations.member("a"), run=replace(run, plan=ALONE))
    )
    assert isinstance(order, MakePlans)


def test_the_plan_at_work_is_marked_whoever_has_made_it(machine):
    plans = machine.state.sections["plans"]
    assert [plans[name_of(plan)]["here"] for plan in (BOTH, ALONE)] == [True, False]
    strange = observations.plan("b", "a", planner="by hand")
    look(machine, observations.seen(observations.member("a"), run=observations.running(strange)))
    plans = machine.state.sections["plans"]
    assert plans[name_of(strange)]["here"]
    assert not plans[name_of(BOTH)]["here"]


def test_a_first_click_previews_and_changes_nothing(machine):
    assert machine.handle(Preview(name=name_of(ALONE)), 2.0) == []
    preview = machine.state.sections["preview"]
    assert preview["who"] == [["a", 0, 4, 8, False, 5000]]
    # two layers of 1000 bytes, with AdamW's two moments
    assert preview["moves"] == [["b", "a", 6000]]
    assert preview["costs_s"] > 0
    assert not preview["is_here"]


def test_a_second_click_switches_and_the_effect_is_told(machine):
    machine.handle(Preview(name=name_of(ALONE)), 2.0)
    (order,) = machine.handle(Go(name=name_of(ALONE)), 2.1)
    assert order == SwitchTo(order=order.order, plan=ALONE)
    machine.handle(Advanced(order=order.order, done_frac=0.4, words="fetching"), 2.2)
    assert machine.state.sections["work"]["switch"] == {"words": "fetching", "frac": 0.4}
    machine.handle(OrderDone(order=order.order), 2.3)
    assert "switch" not in machine.state.sections["work"]
    assert words_of(machine)[-1] == "switched by a click to single on a"
    history = replace(
        observations.running(ALONE).history,
        losses=(1.0,) * 12,
        step_s=(0.5, 0.5, 0.5, 1.5, 0.5, *[0.8] * 7),
    )
    run = replace(observations.running(ALONE, steps=12), history=history)
    look(machine, observations.seen(observations.member("a"), run=run), 9.0)
    (effect,) = machine.state.sections["effects"].values()
    assert (effect["before_s"], effect["after_s"], effect["predicted_s"]) == (0.5, 0.8, 0.9)
    # the steps while it went on: 1.5 s and 0.5 s, against usual ones of 0.5 s
    assert effect["cost_s"] == pytest.approx(1.0)
    assert "predicted 900 ms; before, 500 ms" in words_of(machine)[-1]


def test_a_switch_that_fails_says_that_the_old_plan_stands(machine):
    (order,) = machine.handle(Go(name=name_of(ALONE)), 2.1)
    machine.handle(OrderDone(order=order.order, words="a is out of memory."), 2.3)
    assert words_of(machine)[-1].endswith("the plan before stands: a is out of memory.")
    assert machine.state.sections["effects"] == {}


def test_one_switch_at_a_time(machine):
    machine.handle(Go(name=name_of(ALONE)), 2.1)
    assert machine.handle(Go(name=name_of(ALONE)), 2.2) == []
    assert "under way" in machine.state.sections["said"]["words"]


@pytest.mark.parametrize("name", ["", "p0", "__proto__"])
def test_no_switch_to_a_plan_that_is_not_there(machine, name):
    assert machine.handle(Go(name=name), 2.1) == []


def test_no_switch_of_a_run_that_has_ended(machine):
    run = observations.running(BOTH, ended="a is gone.")
    look(machine, observations.seen(observations.member("a"), run=run))
    assert machine.handle(Go(name=name_of(ALONE)), 2.1) == []
    assert "the run has ended: a is gone." in words_of(machine)


def test_the_newest_wish_counts(machine):
    (first,) = machine.handle(SetLimits(limits=Limits(latency_s=1.0)), 3.0)
    (second,) = machine.handle(SetLimits(limits=Limits(latency_s=0.7)), 3.1)
    machine.handle(Planned(order=first.order, plans=(ALONE,)), 3.2)
    assert name_of(BOTH) in machine.state.sections["plans"]
    machine.handle(Planned(order=second.order, plans=(BOTH,)), 3.3)
    assert [*machine.state.sections["plans"]] == [name_of(BOTH)]


def test_limits_that_no_plan_holds_say_so_and_leave_the_plans(machine):
    (order,) = machine.handle(SetLimits(limits=Limits(latency_s=0.01)), 3.0)
    machine.handle(Planned(order=order.order, words="no plan holds 10 ms."), 3.2)
    assert machine.state.sections["no_plan"]["words"] == "no plan holds 10 ms."
    assert len(machine.state.sections["plans"]) == 2


def test_an_imagined_home_has_plans_of_its_own_that_cannot_be_switched_to(machine):
    (order,) = machine.handle(Imagine(home=Imagined(without=("b",))), 4.0)
    assert (order.home.without, order.limits) == (("b",), Limits())
    dream = observations.plan("dream", planner="single", latency_s=0.2)
    machine.handle(Planned(order=order.order, plans=(dream,)), 4.1)
    assert [*machine.state.sections["imagined_plans"]] == [name_of(dream)]
    machine.handle(Preview(name=name_of(dream)), 4.2)
    assert machine.state.sections["preview"]["imagined"]
    assert machine.handle(Go(name=name_of(dream)), 4.3) == []
    machine.handle(Imagine(home=Imagined()), 4.4)
    assert machine.state.sections["imagined_plans"] == {}


def test_pairing_is_offered_where_it_is_possible_and_told(machine):
    stranger = observations.member("new", key="", here=False)
    look(machine, observations.seen(observations.member("a"), stranger, can_pair=True))
    assert machine.state.sections["devices"]["new"]["pairs"]
    (order,) = machine.handle(PairWith(device="new", code="1234"), 5.0)
    assert order == PairDevice(order=order.order, device="new", code="1234")
    assert machine.handle(PairWith(device="new", code="1234"), 5.0) == []
    machine.handle(OrderDone(order=order.order, words="wrong code."), 5.1)
    assert words_of(machine)[-1] == "pairing with new failed: wrong code."
    assert machine.handle(PairWith(device="a", code="1"), 5.2) == []


def test_what_a_run_decided_and_survived_is_told_once(machine):
    decision = Decision(step=8, action="wait", words="step 8: b is slow.")
    lost = Recovery(
        step=9,
        device="b",
        cause="b is gone.",
        devices=("a",),
        planner="single",
        n_again=2,
        seconds=1.0,
    )
    run = observations.running(BOTH)
    run = replace(run, history=replace(run.history, decisions=(decision,), recoveries=(lost,)))
    for _ in range(3):
        look(machine, observations.seen(observations.member("a"), run=run))
    words = words_of(machine)
    assert words.count("step 8: b is slow.") == 1
    assert words.count(lost.words) == 1


def test_tasks_are_rows_of_the_newest_step_and_transfers_load_the_air(machine):
    events = (
        Event(device="a", lane="compute", start_s=2.0, stop_s=2.2, label="0F0", instruction=3),
        Event(device="a", lane="send", start_s=2.2, stop_s=2.3, peer="b", nbytes=100, label="s"),
        Event(device="b", lane="receive", start_s=2.2, stop_s=2.3, peer="a", nbytes=100_000),
    )
    trace = Trace(source="measured", events=events, step_s=(0.5,))
    run = observations.running(BOTH, latest=trace, latest_step=3)
    look(machine, observations.seen(observations.member("a"), observations.member("b"), run=run))
    rows = machine.state.tasks.since(0)[1]
    assert [row[0] for row in rows] == [3.0, 3.0, 3.0]
    assert rows[0][3:5] == pytest.approx((0.0, 0.2))
    # twice over one air of 1 MB/s in half a second
    assert machine.state.sections["media"]["air"]["load"] == pytest.approx(0.4)


def test_another_run_begins_its_losses_anew(machine):
    look(
        machine,
        observations.seen(
            observations.member("a"), run=observations.running(BOTH, number=2, steps=2)
        ),
    )
    began = machine.state.sections["began"]["losses"]
    start, rows = machine.state.losses.since(began)
    assert (start, [row[0] for row in rows]) == (began, [1.0, 2.0])


def test_a_page_that_comes_gets_everything(machine):
    assert machine.handle(PageOpened(), 6.0) == [ShowAll()]


def test_texts_of_others_are_harmless():
    machine = CockpitMachine()
    name = "dev\u202eice\x07<script>"
    look(machine, observations.seen(observations.member(name)))
    shown = machine.state.sections["devices"][name]["shown"]
    assert "\u202e" not in shown
    assert "\x07" not in shown
    assert "<script>" in shown  # pages set texts as texts


def test_a_plan_that_was_looked_at_can_be_chosen_though_others_are_offered_now(machine):
    name = name_of(ALONE)
    machine.handle(Preview(name=name), 2.0)
    (order,) = machine.handle(SetLimits(limits=Limits(latency_s=0.6)), 2.1)
    machine.handle(Planned(order=order.order, plans=(BOTH,)), 2.2)
    (order,) = machine.handle(Go(name=name), 2.3)
    assert order == SwitchTo(order=order.order, plan=ALONE)


@pytest.mark.parametrize(
    ("plan", "ended", "words"),
    [
        (ALONE, "the fit failed", "nothing runs that could go over"),
        (BOTH, "", "at work already"),
        (observations.plan("b"), "", "offered no more"),
    ],
)
def test_a_click_that_changes_nothing_says_why(machine, plan, ended, words):
    run = observations.running(BOTH, ended=ended)
    look(machine, observations.seen(observations.member("a"), run=run), 2.0)
    before = machine.state.sections.get("said", {}).get("n", 0)
    assert machine.handle(Go(name=name_of(plan)), 2.1) == []
    complaint = machine.state.sections["said"]
    assert complaint["n"] > before
    assert words in complaint["words"]


def test_nothing_is_planned_for_a_home_that_is_closed(machine):
    without = Imagined(without=("b",))
    machine.handle(Imagine(home=without), 2.0)
    machine.handle(SetLimits(limits=Limits(latency_s=0.6)), 2.1)
    run = observations.running(BOTH, ended="the home was closed")
    look(machine, observations.seen(observations.member("a"), run=run, is_closed=True), 2.2)
    assert machine.state.sections["work"] == {}
    assert machine.handle(SetLimits(limits=Limits()), 2.3) == []
    assert machine.handle(Imagine(home=without), 2.4) == []
    assert machine.state.sections["work"] == {}
    assert "closed" in machine.state.sections["said"]["words"]


def test_what_is_looked_at_follows_what_runs(machine):
    machine.handle(Preview(name=name_of(ALONE)), 2.0)
    assert machine.state.sections["preview"]["is_here"] is False
    members = observations.member("a"), observations.member("b")
    look(machine, observations.seen(*members, run=observations.running(ALONE)), 2.1)
    assert machine.state.sections["preview"]["is_here"] is True
    ended = observations.running(ALONE, ended="all is learned")
    look(machine, observations.seen(*members, run=ended), 2.2)
    assert machine.state.sections["preview"]["no_run"] is True


def without_a_problem(observation):
    return replace(observation, run=replace(observation.run, problem=None))


def test_nothing_of_a_run_is_said_of_the_next(machine):
    step = Event(device="a", lane="compute", start_s=0.0, stop_s=0.4, label="0F0", op="run")
    trace = Trace(source="predicted", events=(step,), step_s=(0.4,))
    decided = Decision(step=1, action="keep", words="of the first")
    members = observations.member("a"), observations.member("b")
    run = observations.running(BOTH, latest=trace, latest_step=3, predicted=trace)
    run = replace(run, history=replace(run.history, decisions=(decided,)))
    look(machine, observations.seen(*members, run=run), 2.0)
    machine.handle(Preview(name=name_of(ALONE)), 2.1)
    other = replace(BOTH, model="another")
    run = observations.running(other, steps=0, number=2)
    decided = Decision(step=1, action="keep", words="of the second")
    run = replace(run, history=replace(run.history, decisions=(decided,)))
    look(machine, without_a_problem(observations.seen(*members, run=run)), 2.2)
    shown = machine.state.sections
    assert [*shown["plans"]] == [name_of(other)]  # its own, and none of another model
    assert (shown["preview"], shown["outline"]) == ({}, {})
    assert machine.latest is None
    assert [w for w in words_of(machine) if "deployed" in w][-1].startswith("another")
    assert words_of(machine).count("of the second") == 1
    again = observations.running(other, steps=0, number=3)  # of the same name
    look(machine, without_a_problem(observations.seen(*members, run=again)), 2.3)
    assert sum("another is deployed" in words for words in words_of(machine)) == 2


def test_what_a_run_told_is_not_told_again_after_another(machine):
    members = observations.member("a"), observations.member("b")
    before = words_of(machine)
    other = replace(BOTH, model="another")
    look(machine, observations.seen(*members, run=observations.running(other, number=2)), 2.0)
    look(machine, observations.seen(*members, run=observations.running(BOTH)), 2.1)
    words = words_of(machine)[len(before) :]
    assert words == ["another is deployed on a, b"]


def test_names_that_look_the_same_keep_figures_of_their_own():
    names = "a\u202e", "a\u202d"
    plan = replace(observations.plan(*names), peak_bytes={names[0]: 1000, names[1]: 2000})
    machine = CockpitMachine()
    machine.handle(Planned(order=0, plans=(plan,)), 1.0)
    look(machine, without_a_problem(observations.seen(run=observations.running(plan))))
    machine.handle(Preview(name=name_of(plan)), 2.0)
    assert [row[-1] for row in machine.state.sections["preview"]["who"]] == [1000, 2000]
    stages = repr(machine.state.sections["run"]["stages"])
    assert "\\u202e" not in stages
    assert "\\u202d" not in stages


@pytest.mark.parametrize("figure", [float("inf"), float("nan")])
def test_a_plan_whose_time_is_no_number_is_not_offered(machine, figure):
    (order,) = machine.handle(SetLimits(limits=Limits()), 2.0)
    odd = replace(ALONE, latency_s=figure) if figure == figure else replace(ALONE, energy_j=figure)
    machine.handle(Planned(order=order.order, plans=(BOTH, odd)), 2.1)
    assert all(
        value == value and abs(value) != float("inf")
        for plan in machine.state.sections["plans"].values()
        for value in (plan["s"], plan.get("j", 0.0))
    )
