"""Power by a device's own meter: what is found, how sure it is, and what is said where it fails."""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_model

from potluck.errors import UserError
from potluck.profile.measure_power import Mean, NotMeasured, has_meter, mean_of, shared, watts_of
from potluck.profile.power_model import Watts
from potluck.provenance import ASSUMED, MEASURED
from potluck.sessions.agent_specs import Spec
from potluck.sessions.power_reading import PowerReading
from potluck.testing.internals import lab_of
from potluck.testing.memory import memory_home

pytest.importorskip("torch")
POWER = (2.0, 10.0, 1.5)
TRIES = 8


def profiled(home, **more):
    """Time passes while it waits for readings."""
    _, model = make_model("mlp")
    handle = home.profile(model, rows=(4,), repeats=1, **more)
    while not handle.done:
        lab_of(home).pass_time(0.2)
    return handle.wait()


def measured(home):
    """A profile whose first device was measured; on a busy machine virtual time may pass between
    two tasks in such leaps that it hardly computes, and that is refused.
    """
    for _ in range(TRIES):
        profile = profiled(home, watts=True)
        if profile.devices[0].power_mark == MEASURED:
            break
    return profile


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    """A busy machine plays the seconds of devices in memory more slowly."""
    monkeypatch.setattr("potluck.profile.measure_power.MOST_S", 1000.0)


@pytest.fixture
def metered_home():
    with memory_home([Spec(name="a", power=POWER), Spec(name="b")], metered=("a",)) as home:
        yield home


@pytest.mark.long
def test_a_meter_is_asked_under_a_known_load_and_what_it_says_reaches_the_plan(metered_home):
    a, b = measured(metered_home).devices
    assert (a.power_mark, b.power_mark) == (MEASURED, ASSUMED)
    assert a.power_error_w >= 0.05  # the meter's resolution
    # both are agents of one machine, which has one meter
    assert a.idle_w == pytest.approx(POWER[0] / 2, abs=a.power_error_w)
    assert a.busy_w - a.idle_w == pytest.approx(POWER[1] - POWER[0], abs=a.power_error_w)
    assert "by its meter" in a.power_note
    assert b.power_error_w is None
    assert metered_home.devices.metering.period_s("a") == 0  # nobody wants readings any more


@pytest.mark.long
def test_power_is_measured_once_in_a_home_or_when_asked_for_or_not_at_all(metered_home):
    assert profiled(metered_home, watts=False).devices[0].power_mark == ASSUMED
    first = measured(metered_home).devices[0]
    n_kept = len(metered_home.readings.history["a"])
    again = profiled(metered_home).devices[0]
    assert replace(again, overhead_s=first.overhead_s, handling_s=first.handling_s) == first
    assert len(metered_home.readings.history["a"]) == n_kept
    assert measured(metered_home).devices[0].power_mark == MEASURED
    assert len(metered_home.readings.history["a"]) > n_kept


def test_without_a_meter_no_time_is_taken():
    with memory_home([Spec(name="a", power=POWER)]) as home:
        (a,) = profiled(home).devices
        assert (a.idle_w, a.busy_w, a.power_mark) == (2.0, 10.0, ASSUMED)
        assert home.readings.history == {}


def test_watts_are_asked_for_by_yes_or_no():
    with memory_home(1) as home, pytest.raises(UserError, match="True or False, got 7"):
        home.profile(make_model("mlp")[1], watts=7)


@pytest.mark.parametrize(
    ("capability", "has"),
    [
        ({}, False),
        ({"meters": [{"name": "rapl", "source": ""}]}, False),
        ({"meters": [{"name": "rapl", "source": "measured"}]}, True),
        ({"meters": [{"name": "m", "source": "measured"}], "emulated": {"slowdown": 2.0}}, False),
    ],
)
def test_only_a_real_device_with_a_meter_that_measures_is_asked(capability, has):
    assert has_meter(capability) == has


def readings_of(*watts, source=MEASURED, resolution_w=0.1):
    """A reading a second."""
    return tuple(
        PowerReading(
            device="a",
            at_s=float(i),
            watts=w,
            joules=sum(watts[1 : i + 1]),
            source=source,
            resolution_w=resolution_w,
        )
        for i, w in enumerate(watts)
    )


def test_the_error_is_the_spread_of_the_readings_and_the_meters_resolution():
    steady, shaky = mean_of(readings_of(4, 4, 4, 4, 4)), mean_of(readings_of(4, 3, 5, 3, 5))
    assert (steady.watts, steady.error_w) == (4.0, pytest.approx(0.1))
    assert (shaky.watts, shaky.error_w) == (4.0, pytest.approx(1.005, abs=1e-3))


@pytest.mark.parametrize(
    ("readings", "pattern"),
    [
        ((), "told 0 readings"),
        (readings_of(4, 4, 4), "told 3 readings"),
        (readings_of(4, 4, 4, 4, source=ASSUMED), "fell silent or jumped"),
    ],
)
def test_what_was_not_measured_is_not_called_so(readings, pattern):
    with pytest.raises(NotMeasured, match=pattern):
        mean_of(readings)


def test_power_is_as_of_all_the_time_and_never_below_rest():
    found = watts_of(Mean(2.0, 0.1, 0.0), Mean(6.0, 0.1, 0.5), Mean(1.9, 0.1, 0.0))
    assert (found.idle_w, found.busy_w, found.radio_w) == (2.0, 10.0, 0.0)
    assert found.error_w == pytest.approx(0.1 * 2**0.5 / 0.5)
    with pytest.raises(NotMeasured, match="it computed 5%"):
        watts_of(Mean(2.0, 0.1, 0.0), Mean(6.0, 0.1, 0.05), Mean(2.0, 0.1, 0.0))


def test_devices_of_one_machine_share_what_it_takes_at_rest():
    known = Watts(idle_w=6.0, busy_w=20.0, radio_w=1.0, source=MEASURED)
    assert (shared(known, 3).idle_w, shared(known, 3).busy_w) == (2.0, 16.0)
    assert shared(known, 1) == known
