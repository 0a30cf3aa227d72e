"""What a profile learns from a run, by hand."""

from dataclasses import replace

import pytest

from potluck.profile.from_runs import learned, piece_seconds
from potluck.profile.profiles import Measurements, Profile
from potluck.records import Device, Event, Layer, LayerCost, Network, Trace
from potluck.schedule import Compiled
from potluck.schedule.program_builder import Annotation

COST = LayerCost(rows=(1, 8), forward_s=(1.0, 4.0), backward_s=(2.0, 6.0), update_s=0.5)
PROFILE = Profile(
    model="m",
    signature="s",
    devices=(Device(name="a", memory_bytes=1), Device(name="b", memory_bytes=1)),
    network=Network(media=(), paths={}),
    training=Measurements(
        layers=(Layer(name="0"), Layer(name="1")), costs={"a": (COST, COST), "b": (COST, COST)}
    ),
)
# a runs layer 0, b layer 1
COMPILED = Compiled(
    programs={},
    notes={
        name: (Annotation(start=i, stop=i + 1, rows=8),) * 2 for i, name in enumerate(("a", "b"))
    },
)


def trace(source, **seconds):
    """A step per number: `a_run=(8.0, 9.0)` are two steps of which device a ran 8 and 9 s."""
    events = [
        Event(
            device=name[0],
            lane="compute",
            start_s=0.0,
            stop_s=value,
            op=name[2:],
            step=step,
            instruction=int(name[2:] == "backward"),
        )
        for name, values in seconds.items()
        for step, value in enumerate(values)
    ]
    return Trace(source=source, events=tuple(events), step_s=(1.0,))


EXPECTED = {"a_run": (4.0,), "a_backward": (6.0,), "b_run": (4.0,)}


@pytest.mark.parametrize(
    ("measured", "factor"),
    [((9.0, 1.0, 9.0), 1.5), ((4.0,), 1.0), ((1.0,), 0.5), ((4000.0,), 2.0), ((1e-9,), 0.5)],
)
def test_layers_go_half_of_the_way_to_what_their_piece_took(measured, factor):
    found = learned(
        PROFILE,
        trace("predicted", **EXPECTED),
        trace("measured", a_run=measured),
        COMPILED,
        training=True,
    )
    changed, other = found.training.costs["a"]
    assert changed.forward_s == pytest.approx((1.0 * factor, 4.0 * factor))
    assert (changed.backward_s, changed.update_s) == (COST.backward_s, COST.update_s)
    assert other == COST
    assert found.training.costs["b"] == (COST, COST)


def test_several_runs_bring_a_profile_to_what_is_measured():
    profile = PROFILE
    for _ in range(8):
        expected = {"a_run": (profile.training.costs["a"][0].forward_s[1],)}
        args = trace("predicted", **expected), trace("measured", a_run=(10.0,)), COMPILED
        profile = learned(profile, *args, training=True)
    assert profile.training.costs["a"][0].forward_s[1] == pytest.approx(10.0, rel=0.01)


def test_a_device_that_lasts_as_its_profile_says_teaches_nothing():
    args = trace("predicted", **EXPECTED), trace("measured", a_run=(9.0,), b_run=(16.0,)), COMPILED
    found = learned(PROFILE, *args, training=True, steady={"a"})
    assert found.training.costs["a"] == (COST, COST)
    assert found.training.costs["b"][1].forward_s == (2.0, 8.0)


def test_a_profile_without_this_mode_stays_as_it_is():
    args = trace("predicted", **EXPECTED), trace("measured", a_run=(9.0,)), COMPILED
    assert learned(PROFILE, *args, training=False) == PROFILE


def test_watts_go_half_of_the_way_to_what_the_meter_counted_and_no_others_do():
    devices = tuple(
        Device(name=name, memory_bytes=1, idle_w=1.0, busy_w=5.0, radio_w=2.0, power_note="a guess")
        for name in ("a", "b")
    )
    blind = Device(name="c", memory_bytes=1)
    known = replace(PROFILE, devices=(*devices, blind))
    # 10 s, of them 5 s busy: 10 * 1 + 5 * (5 - 1) = 30 J by these watts
    run = replace(
        trace("measured"),
        step_s=(4.0, 6.0),
        busy_s={"a": 5.0, "b": 5.0, "c": 5.0},
        energy_j={"a": 67.5, "b": 67.5, "c": 67.5},
        energy_source={"a": "measured", "b": "assumed", "c": "measured"},
    )
    once = learned(known, trace("predicted"), run, COMPILED, training=True)
    a, *others = once.devices
    assert (a.idle_w, a.busy_w, a.radio_w) == pytest.approx((1.5, 7.5, 3.0))
    assert (a.power_mark, a.power_note) == ("assumed", "a guess; learned from runs")
    assert others == [devices[1], blind]
    for _ in range(10):
        once = learned(once, trace("predicted"), run, COMPILED, training=True)
    assert once.devices[0].busy_w == pytest.approx(5.0 * 67.5 / 30.0, rel=1e-2)
    assert once.devices[0].power_note == "a guess; learned from runs"


@pytest.mark.parametrize("joules", [0.0, -5.0, 1e-9, 1e12])
def test_one_absurd_run_moves_watts_by_no_more_than_a_factor_of_two(joules):
    device = Device(name="a", memory_bytes=1, idle_w=1.0, busy_w=5.0)
    run = replace(
        trace("measured"),
        busy_s={"a": 0.5},
        energy_j={"a": joules},
        energy_source={"a": "measured"},
    )
    found = learned(
        replace(PROFILE, devices=(device,)), trace("predicted"), run, COMPILED, training=True
    )
    assert 2.5 <= found.devices[0].busy_w <= 10.0


def test_both_parts_of_a_backward_count_as_one():
    ops = ("run", "backward_input", "backward_weight", "backward_input", "backward_weight")
    took_s = (1.0, 2.0, 3.0, 4.0, 5.0)
    events = tuple(
        Event(device="a", lane="compute", start_s=0.0, stop_s=s, op=op, instruction=i)
        for i, (op, s) in enumerate(zip(ops, took_s, strict=True))
    )
    note = Annotation(start=0, stop=2, rows=4)
    compiled = Compiled(programs={}, notes={"a": (note,) * len(ops)})
    found = piece_seconds(Trace(source="measured", events=events), compiled)
    assert found == {("a", "run", 0, 2, 4): 1.0, ("a", "backward", 0, 2, 4): 3.0 + 4.0}
