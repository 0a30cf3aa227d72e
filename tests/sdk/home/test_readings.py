"""Readings of a home's power whenever somebody wants them, over the wire."""

import pytest

from potluck import Home
from potluck.errors import HomeError
from potluck.provenance import ASSUMED, MEASURED
from potluck.sessions.agent_specs import Spec
from potluck.testing.internals import lab_of
from potluck.testing.memory import MemoryLab, memory_home
from potluck_wire.messages import Reading

POWER = (2.0, 10.0, 1.0)
SPECS = [Spec(name="a", power=POWER), Spec(name="b", power=POWER)]


@pytest.fixture
def metered_home():
    with memory_home(SPECS, metered=("a",)) as home:
        yield home


def test_readings_come_while_no_run_is_on_at_the_rate_that_was_chosen(metered_home):
    stream = metered_home.readings(rate_hz=10)
    lab_of(metered_home).pass_time(2.0)
    history = metered_home.readings.history
    assert {name: len(kept) for name, kept in history.items()} == {
        "a": pytest.approx(20, abs=2),
        "b": pytest.approx(20, abs=2),
    }
    assert {kept[-1].source for kept in history.values()} == {MEASURED, ASSUMED}
    first = [next(stream) for _ in range(30)]
    assert {reading.device for reading in first} == {"a", "b"}
    assert first[-1].watts == 2.0  # idle
    stream.close()
    lab_of(metered_home).pass_time(1.0)
    n_kept = len(metered_home.readings.history["a"])
    lab_of(metered_home).pass_time(5.0)
    assert len(metered_home.readings.history["a"]) == n_kept  # nobody wants any more


def test_readings_asked_for_at_once_come_from_devices_whose_clocks_are_ahead_of_ours():
    lab = MemoryLab(SPECS, metered=("a",))
    with Home.over(lab) as home:
        home.readings(rate_hz=10)
        lab.pass_time(2.0)
        history = home.readings.history
        assert {name: len(kept) for name, kept in history.items()} == {
            "a": pytest.approx(20, abs=2),
            "b": pytest.approx(20, abs=2),
        }
        assert not home.readings.faults
        assert all(abs(kept[0].at_s - kept[-1].at_s) < 3.0 for kept in history.values())


def test_two_wishes_share_one_subscription_and_the_faster_one_decides(metered_home):
    slow = metered_home.readings(rate_hz=1)
    fast = metered_home.readings(rate_hz=10, devices=["b"])
    lab_of(metered_home).pass_time(3.0)
    n_kept = {name: len(kept) for name, kept in metered_home.readings.history.items()}
    assert n_kept["a"] == pytest.approx(3, abs=1)
    assert n_kept["b"] == pytest.approx(30, abs=2)
    fast.close()
    lab_of(metered_home).pass_time(3.0)
    assert len(metered_home.readings.history["b"]) == pytest.approx(n_kept["b"] + 3, abs=2)
    slow.close()


def test_a_device_that_is_killed_is_told_of_and_tells_again_when_it_is_back(metered_home):
    stream = metered_home.readings(rate_hz=2)
    lab_of(metered_home).pass_time(1.0)
    before = metered_home.readings.history["a"][-1]
    lab_of(metered_home).kill("a")
    lab_of(metered_home).pass_time(3.0)
    with pytest.warns(UserWarning, match="a is gone"):
        next(stream)
    lab_of(metered_home).restart("a")
    metered_home.devices.join(["a"])
    lab_of(metered_home).pass_time(2.0)
    after = metered_home.readings.history["a"][-1]
    assert after.at_s > before.at_s
    assert after.joules >= before.joules
    stream.close()


def test_joules_that_jump_beyond_what_can_be_are_not_those_of_a_run():
    with memory_home(SPECS, metered=("a",)) as home:
        told = [(1.0, 5.0), (2.0, 10.0), (3.0, 1e30), (4.0, 1e30 + 5), (5.0, 1.0), (6.0, 6.0)]
        for at_s, joules in told:
            home.devices.receive(
                "a", Reading(at_s=at_s, watts=5.0, joules=joules, source="measured")
            )
        assert home.devices["a"].metered == ((5.0, 1.0), (6.0, 6.0))


def test_readings_end_with_the_home():
    with memory_home(1) as home:
        stream = home.readings(rate_hz=1)
    assert list(stream) == []
    with pytest.raises(HomeError, match="closed"):
        home.readings()
