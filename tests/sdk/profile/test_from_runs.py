"""What a profile learns from a run, by hand."""

import pytest

from potluck.profile.from_runs import learned
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
    assert learned(PROFILE, *args, training=False) is PROFILE
