"""Meters that jump, wrap or begin anew: joules never fall, never exceed what can be, and say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.meters.test_meters import BATTERY, plant

from potluck_agent import meters
from potluck_agent.meters.power_model import PowerModel
from potluck_agent.meters.records import MOST_W, REFRESH_S, CounterGauge, PowerGauge

MOMENTS = st.floats(allow_nan=True, allow_infinity=True)
ODD = st.lists(
    st.tuples(st.floats(-5.0, 90.0), st.one_of(MOMENTS, st.floats(-1e3, 1e6))), max_size=12
)


def played(open_gauge, steps):
    """The samples of a meter that reads these values, so many seconds after one another."""
    values = iter([value for _, value in steps])
    meter = meters.DeviceMeter((open_gauge(lambda: next(values)),), PowerModel(1.0, 5.0, 0.0))
    now_s = 1000.0
    samples = []
    moments = []
    for seconds, _ in steps:
        now_s += seconds
        samples.append(meter.read(now_s, 0.0, 0.0))
        moments.append(now_s)
    return moments, samples


OPEN = {
    "power": lambda read: PowerGauge("g", 0.1, read),
    "counter": lambda read: CounterGauge("g", 0.1, read, 65_536.0),
    "counter without range": lambda read: CounterGauge("g", 0.1, read),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", OPEN)
@given(steps=ODD)
def test_whatever_a_meter_says_joules_never_fall_and_never_exceed_what_can_be(kind, steps):
    moments, samples = played(OPEN[kind], steps)
    joules = [sample.joules for sample in samples]
    for i in range(1, len(samples)):
        span_s = max(0.0, moments[i] - moments[i - 1])
        assert 0 <= joules[i] - joules[i - 1] <= MOST_W * (span_s + REFRESH_S) * (1 + 1e-9)
    assert all(0 <= sample.watts <= MOST_W for sample in samples)


@pytest.mark.parametrize("kind", OPEN)
@given(steps=ODD)
def test_samples_that_say_measured_hold_what_the_gauge_told_and_nothing_else(kind, steps):
    moments, samples = played(OPEN[kind], steps)
    sources = [sample.source for sample in samples]
    assert sources == sorted(sources, reverse=True)  # measured, then estimated for good
    values = iter([value for _, value in steps])
    gauge = OPEN[kind](lambda: next(values))
    joules_read = [gauge.advance(now_s)[1] for now_s in moments]
    n_measured = sources.count("measured")
    for i in range(1, n_measured):
        assert samples[i].joules == pytest.approx(
            sum(joules or 0.0 for joules in joules_read[: i + 1])
        )


@given(
    range_j=st.floats(10_000.0, 300_000.0),
    start_frac=st.floats(0.0, 0.999),
    powers_w=st.lists(st.floats(0.0, 300.0), min_size=1, max_size=40),
)
def test_a_counter_that_wraps_counts_all_there_was(range_j, start_frac, powers_w):
    count_j = start_frac * range_j
    now_s = 0.0
    total_j = 0.0
    counts = []
    gauge = CounterGauge("g", 0.1, lambda: count_j % range_j, range_j)
    gauge.advance(now_s)
    for watts in powers_w:
        now_s = now_s + 30.0
        count_j = count_j + 30.0 * watts
        total_j = total_j + 30.0 * watts
        counts.append(gauge.advance(now_s)[1])
    assert None not in counts
    assert sum(counts) == pytest.approx(total_j, abs=1e-5)


@pytest.mark.parametrize(
    "count_j",
    [5.0, -3.0, 1e9, float("nan"), float("inf")],
    ids=["reset", "negative", "jump", "nan", "inf"],
)
def test_a_counter_that_was_reset_or_jumps_is_not_taken_for_energy(count_j):
    counts = iter([40_000.0, 40_050.0, count_j, count_j, count_j])
    meter = meters.DeviceMeter(
        (CounterGauge("g", 0.1, lambda: next(counts), 65_536.0),), PowerModel(2.0, 4.0, 0.0)
    )
    samples = [meter.read(float(now_s), 0.0, 0.0) for now_s in range(4)]
    assert [sample.source for sample in samples[:2]] == ["measured", "measured"]
    assert samples[2].joules == samples[1].joules + 2.0  # the model spoke for this second
    assert samples[2].source == samples[3].source == "estimated"


def test_a_clock_that_goes_back_makes_no_negative_joules():
    for gauge in (PowerGauge("g", 0.1, lambda: 5.0), CounterGauge("g", 0.1, lambda: 100.0, 1000.0)):
        meter = meters.DeviceMeter((gauge,), PowerModel(2.0, 4.0, 0.0))
        joules = [meter.read(now_s, 0.0, 0.0).joules for now_s in (10.0, 12.0, 3.0, 4.0)]
        assert joules == sorted(joules)


def test_the_batteries_charge_is_told_and_that_of_a_mouse_is_not(tmp_path):
    plant(tmp_path, {f"{BATTERY}/type": "Battery", f"{BATTERY}/capacity": 80})
    plant(tmp_path, {"sys/class/power_supply/BAT1/type": "Battery"})
    plant(tmp_path, {"sys/class/power_supply/BAT1/capacity": 40})
    mouse = {"type": "Battery", "scope": "Device", "capacity": 3}
    plant(tmp_path, {f"sys/class/power_supply/hid/{name}": value for name, value in mouse.items()})
    sample = meters.open_meter(root=tmp_path).read(0.0, 0.0, 0.0)
    assert sample.battery_frac == pytest.approx(0.6)
    plant(tmp_path, {f"{BATTERY}/capacity": "soon", "sys/class/power_supply/BAT1/capacity": 140})
    assert meters.charge_frac(tmp_path) == 1.0
    assert meters.charge_frac(tmp_path / "nowhere") is None


def test_a_gap_is_a_gap_where_the_owner_said_no_watts_for_it():
    values = iter([5.0, float("nan"), 5.0])
    gauge = PowerGauge("g", 0.1, lambda: next(values))
    meter = meters.DeviceMeter((gauge,), PowerModel(0.0, 0.0, 0.0))
    sources = [meter.read(now_s, 0.0, 0.0).source for now_s in (1.0, 2.0, 3.0)]
    assert sources == ["measured", "estimated", "estimated"]
