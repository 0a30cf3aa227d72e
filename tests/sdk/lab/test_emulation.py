"""Homes of the library slowed down: everything by one factor, and refused where this machine cannot
keep up.
"""

import contextlib

import pytest
from tests.sdk.lab.homes import write_home

from potluck.errors import UserError
from potluck.lab import profiling
from potluck.lab.emulation import LayerWork, emulation, in_home_time
from potluck.records import Event, LayerCost, Plan, Stage, Trace


@pytest.fixture
def tiny(tmp_path):
    return write_home(tmp_path)


def test_everything_is_slower_by_the_same_factor(tiny):
    fast, slow = emulation(tiny), emulation(tiny, 10)
    assert slow.network.bandwidth("one", "two") == pytest.approx(
        fast.network.bandwidth("one", "two") / 10
    )
    assert slow.device("two").copy_bytes_per_s == pytest.approx(
        fast.device("two").copy_bytes_per_s / 10
    )
    cost = LayerCost(
        rows=(1, 2), forward_s=(1.0, 2.0), backward_s=(2.0, 3.0), update_s=0.5, sgd_s=(0.1, 0.2)
    )
    assert slow.slowed([cost])[0] == LayerCost(
        rows=(1, 2), forward_s=(10.0, 20.0), backward_s=(20.0, 30.0), update_s=5.0, sgd_s=(1.0, 2.0)
    )


def test_agents_are_told_memory_and_power(tiny):
    spec = emulation(tiny).specs()[0]
    assert spec.emulated
    assert spec.memory == emulation(tiny).home.devices[0].memory_bytes
    assert "--emulated" in spec.arguments()


@pytest.mark.parametrize("scale", [0.5, 0.0, float("nan"), 1e7])
def test_impossible_time_scales_are_refused(tiny, scale):
    with pytest.raises(UserError, match="time scale"):
        emulation(tiny, scale)


def test_links_that_are_too_fast_are_refused_with_a_time_scale_that_does():
    with pytest.raises(UserError, match=r"500 MB/s .* time_scale=(\d+)") as caught:
        emulation("edge-cluster")
    scale = caught.value.facts["time_scale"]
    assert emulation("edge-cluster", scale).network.bandwidth("a40-1", "a40-2") < 60e6


def test_so_are_those_that_a_script_would_make_too_fast(tiny):
    emulation(tiny).check_rate("air", 100e6)  # crossed twice
    with pytest.raises(UserError, match=r"one sends 1000 MB/s to two.*--time-scale") as caught:
        emulation(tiny).check_rate("air", 2e9)
    emulation(tiny, caught.value.facts["time_scale"]).check_rate("air", 2e9)


def test_paths_that_no_connection_is_made_over_are_refused_with_a_time_scale_that_does(tmp_path):
    about = 'basis = "estimate", source = "a test"'
    rates = ", ".join(
        f"{way}_bytes_per_s = {{ value = 1e7, {about} }}" for way in ("there", "back")
    )
    latency = f"latency_s = {{ value = 0.01, {about} }}"
    link = f'{{ sites = ["here", "there"], {rates}, {latency} }}'
    sites = ("here", "here", "there")
    far = write_home(tmp_path, "far", topology="sites", sites=sites, links=link)
    with pytest.raises(UserError, match=r"0\.3 s, .* 4 round trips.* time_scale of 25 or less"):
        emulation(far, 30)
    emulation(far, 25)


def cost(forward_s):
    return LayerCost(rows=(1,), forward_s=(forward_s,))


def test_work_that_does_not_fit_is_refused_with_a_time_scale_that_does(tiny):
    """By hand: layer 2 takes 4 ms here and should take 1 ms on `two`: four times too slow."""
    real = [cost(1e-3), cost(4e-3)]
    played = {"one": [cost(1.0), cost(1.0)], "two": [cost(1e-2), cost(1e-3)]}
    with pytest.raises(UserError, match=r"of second, two would need 0\.25 of the time") as caught:
        emulation(tiny).check_fit(
            [LayerWork(layers=["first", "second"], real=real, played=played)], 8
        )
    scale = caught.value.facts["time_scale"]
    assert 4 < scale < 12
    slower = emulation(tiny, scale)
    played = {name: slower.slowed(costs) for name, costs in played.items()}
    slower.check_fit([LayerWork(layers=["first", "second"], real=real, played=played)], 8)


def test_whoever_takes_the_time_scale_that_is_offered_is_not_refused_again(tiny):
    """Training fits by itself, a request does not.

    Measured anew, everything takes 1.3 times as long.
    """
    played = {"one": [cost(1e-3)], "two": [cost(1e-3)]}

    def works(scale, longer=1.0):
        slow = {name: emulation(tiny, scale).slowed(costs) for name, costs in played.items()}
        return [
            LayerWork(layers=["a"], real=[cost(seconds * longer)], played=slow)
            for seconds in (4e-3, 9e-3)
        ]

    with pytest.raises(UserError) as caught:
        emulation(tiny).check_fit(works(1), 2)
    scale = caught.value.facts["time_scale"]
    emulation(tiny, scale).check_fit(works(scale, longer=1.3), 2)


BUSY_S, QUICK_S = 1.0, 1e-3


@pytest.mark.parametrize(
    ("looks", "plays"),
    [
        ([(BUSY_S, BUSY_S), (BUSY_S, QUICK_S), (QUICK_S, BUSY_S)], True),
        ([(BUSY_S, QUICK_S)] * (1 + profiling.MORE_LOOKS), False),
    ],
    ids=["busy for a moment", "too slow for a layer"],
)
def test_a_machine_that_does_something_else_for_a_moment_plays_a_home(
    tiny, monkeypatch, looks, plays
):
    """Each layer is seen undisturbed once, though not both in the same look."""
    monkeypatch.setattr(profiling, "PAUSE_S", 0.0)
    played = {name: [cost(2e-3), cost(2e-3)] for name in ("one", "two")}
    measured = iter([*map(cost, seconds)] for seconds in looks)
    work = LayerWork(layers=["a", "b"], real=next(measured), played=played)
    with contextlib.nullcontext() if plays else pytest.raises(UserError, match="of a, "):
        profiling.check_speed(emulation(tiny), {True: work}, lambda *_: next(measured))
    assert next(measured, None) is None


def test_a_layer_that_no_step_shows_may_take_longer_but_not_many_of_them(tiny):
    """Ten microseconds of a call, beside layers of milliseconds."""

    def work(n_small):
        names = ["large", *(f"small {i}" for i in range(n_small))]
        real = [cost(5e-4), *[cost(1e-5)] * n_small]
        played = {name: [cost(1e-3), *[cost(1e-6)] * n_small] for name in ("one", "two")}
        return LayerWork(layers=names, real=real, played=played)

    emulation(tiny).check_fit([work(1)], 8)
    with pytest.raises(UserError, match="of large"):
        emulation(tiny).check_fit([work(100)], 8)


def test_devices_that_fit_alone_may_not_fit_together(tiny):
    played = {name: [cost(2e-3)] for name in ("one", "two", "three")}  # each takes half a core
    work = LayerWork(layers=["layer"], real=[cost(1e-3)], played=played)
    emulation(tiny).check_fit([work], 2)
    with pytest.raises(UserError, match="3 devices share 1 cores"):
        emulation(tiny).check_fit([work], 1)


def test_times_of_the_lab_are_brought_home():
    trace = Trace(
        source="measured",
        events=(Event(device="a", lane="compute", start_s=1.0, stop_s=3.0),),
        step_s=(3.0,),
        busy_s={"a": 2.0},
        energy_j={"a": 30.0},
    )
    home = in_home_time(trace, 10)
    assert (home.events[0].start_s, home.events[0].stop_s, home.step_s) == (0.1, 0.3, (0.3,))
    assert home.busy_s == {"a": 0.2}
    assert home.energy_j == {"a": 3.0}
    plan = Plan(
        planner="",
        model="m",
        stages=(Stage(start=0, stop=1, devices=("a",), shares=(1,)),),
        micro_batch=1,
        latency_s=2.0,
        energy_j=5.0,
    )
    assert in_home_time(plan, 10).latency_s == pytest.approx(0.2)
    assert in_home_time(plan, 10).energy_j == pytest.approx(0.5)
