"""What a notebook believes of the power that a device tells."""

import csv
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.timeouts import TIMEOUT_S

from potluck.provenance import MARKS
from potluck.sessions.power_reading import MOST_W, SLACK_S, EnergyCount, believed, fault_of
from potluck.sessions.readings import KEPT, WAITING, Readings
from potluck_wire.messages import Reading

NUMBERS = st.one_of(st.floats(), st.floats(-10.0, 1e4))
TOLD = st.builds(
    Reading,
    at_s=NUMBERS,
    watts=NUMBERS,
    joules=NUMBERS,
    source=st.sampled_from(["measured", "estimated", "simulated", "", "surely"]),
    meter=st.text(max_size=8),
    resolution_w=NUMBERS,
    busy_frac=NUMBERS.filter(lambda x: x == x),
    battery_frac=NUMBERS.filter(lambda x: x == x),
)
GOOD = Reading(at_s=10.0, watts=5.0, joules=50.0, source="measured")


class Wishes:
    """What a `Metering` is to `Readings`, without devices."""

    def __init__(self):
        self.wanted = {}

    def want(self, devices, period_s):
        self.wanted[len(self.wanted)] = period_s
        return len(self.wanted) - 1

    def enough(self, number):
        self.wanted.pop(number, None)

    def forget(self, device):
        pass

    def ask(self):
        pass


def readings(*names, wishes=None):
    return Readings(wishes or Wishes(), lambda: dict.fromkeys(names or ("a", "b")))


@pytest.mark.long
@given(sent=st.lists(TOLD, max_size=20))
def test_whatever_a_device_tells_energy_never_falls_and_is_never_absurd(sent):
    home = readings("a")
    for each in sent:
        home.receive("a", each)
    kept = home.history.get("a", ())
    for before, after in pairwise(kept):
        assert after.at_s >= before.at_s
        most = MOST_W * (after.at_s - before.at_s + SLACK_S)
        assert 0 <= after.joules - before.joules <= most * (1 + 1e-6) + 1e-3
    for reading in kept:
        assert 0 <= reading.watts <= MOST_W
        assert reading.resolution_w >= 0
        assert reading.source in MARKS
        assert 0 <= reading.busy_frac <= 1
        assert reading.battery_frac is None or 0 <= reading.battery_frac <= 1
    repr(home)
    home._repr_html_()


@pytest.mark.parametrize(
    "wrong",
    [
        {"watts": -1.0},
        {"watts": 1e9},
        {"watts": float("nan")},
        {"joules": -1.0},
        {"joules": float("inf")},
        {"resolution_w": -1.0},
        {"at_s": 9.0},
    ],
    ids=str,
)
def test_what_cannot_be_is_left_out_and_said(wrong):
    home = readings("a")
    assert home.receive("a", GOOD)
    assert not home.receive("a", replace(GOOD, **wrong))
    assert len(home.history["a"]) == 1
    assert set(home.faults) == {"a"}
    assert home.faults["a"] in repr(home)
    assert fault_of(GOOD, None) == ""


def test_a_gap_makes_the_sum_assumed_for_good():
    count = EnergyCount().after(GOOD, None)
    later = replace(GOOD, at_s=11.0, joules=55.0)
    count = count.after(later, GOOD)
    assert believed("a", later, count).source == "measured"
    begun_anew = replace(GOOD, at_s=12.0, joules=1.0)
    count = count.after(begun_anew, later)
    on = replace(GOOD, at_s=13.0, joules=6.0)
    count = count.after(on, begun_anew)
    reading = believed("a", on, count)
    assert (reading.joules, reading.source) == (10.0, "assumed")


@pytest.mark.parametrize("rate_hz", [0, -1, 21, 1e9, float("nan"), "10", None, True])
def test_absurd_rates_are_refused(rate_hz):
    with pytest.raises(Exception, match="readings a second are not possible"):
        readings()(rate_hz=rate_hz)


def test_names_are_checked():
    with pytest.raises(Exception, match="a list of names"):
        readings()(devices="a")
    with pytest.raises(Exception, match="not in this home; here are a, b"):
        readings()(devices=["c"])


def test_a_device_that_floods_costs_itself_alone():
    home = readings()
    stream = home(rate_hz=20)
    for i in range(3 * KEPT):
        home.receive("a", replace(GOOD, at_s=10.0 + i))
    home.receive("b", GOOD)
    assert len(home.history["a"]) == KEPT
    assert {next(stream).device for _ in range(2)} == {"a", "b"}
    rest = [next(stream) for _ in range(WAITING - 1)]
    assert {reading.device for reading in rest} == {"a"}
    stream.close()


def test_who_wants_fewer_readings_than_others_gets_fewer():
    wishes = Wishes()
    home = readings("a", wishes=wishes)
    slow, fast = home(rate_hz=1), home(rate_hz=10)
    for i in range(100):
        home.receive("a", replace(GOOD, at_s=10.0 + i / 10))
    assert [round(next(slow).at_s - home.history["a"][0].at_s, 6) for _ in range(10)] == list(
        range(10)
    )
    assert [next(fast).at_s for _ in range(100)] == [r.at_s for r in home.history["a"]]
    slow.close()
    fast.close()
    assert wishes.wanted == {}


def test_a_device_that_is_gone_is_told_of_and_others_go_on():
    home = readings()
    stream = home(rate_hz=1)
    home.receive("a", GOOD)
    home.lost("a")
    home.receive("b", GOOD)
    with pytest.warns(UserWarning, match="a is gone: no readings of it until it is back"):
        found = [next(stream).device, next(stream).device]
    assert found == ["a", "b"]
    home.receive("a", replace(GOOD, at_s=1.0, joules=0.0))  # it has begun anew
    assert next(stream).device == "a"
    assert home.history["a"][-1].joules == 0.0


def test_streams_end_with_the_home_or_when_closed():
    home = readings()
    first, second = home(), home()
    first.close()
    first.close()
    assert list(first) == []
    home.close()
    assert list(second) == []
    with pytest.raises(Exception, match="this home is closed"):
        home()


def test_a_callback_that_raises_ends_its_readings_and_nobody_elses(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda raised: None)
    home = readings("a")
    seen = []

    def back(reading):
        seen.append(reading.watts)
        raise ZeroDivisionError

    other = home(rate_hz=1)
    others = set(threading.enumerate())
    stream = home.call(back, rate_hz=1)
    home.receive("a", GOOD)
    for thread in set(threading.enumerate()) - others:
        thread.join(TIMEOUT_S)
    assert (seen, list(stream), next(other).watts) == ([5.0], [], 5.0)


def test_the_history_becomes_a_file_that_no_spreadsheet_executes(tmp_path):
    home = readings()
    home.receive("a", replace(GOOD, meter="=cmd()", battery_frac=0.5))
    home.receive("b", replace(GOOD, at_s=9.0, meter="rapl, package-0"))
    path = home.to_csv(tmp_path / "power.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["device"], row["meter"]) for row in rows] == [
        ("b", "rapl, package-0"),
        ("a", "'=cmd()"),
    ]
    assert [row["battery_frac"] for row in rows] == ["", "0.5"]
    assert rows[1]["watts"] == "5.0"
    with pytest.raises(Exception, match="cannot write"):
        home.to_csv(tmp_path / "nowhere" / "power.csv")
