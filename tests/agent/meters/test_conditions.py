"""Mains, battery and temperature over invented trees of /sys."""

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from tests.agent.meters.test_meters import plant

from potluck_agent.cli.availability import check
from potluck_agent.errors import AgentError
from potluck_agent.meters import conditions
from potluck_agent.owner_rules import DAY_MINUTES, OwnerRules

SUPPLY = "sys/class/power_supply"
ZONE = "sys/class/thermal/thermal_zone"
pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux has /sys")


def battery(status, percent=80, name="BAT0"):
    return {
        f"{SUPPLY}/{name}/type": "Battery",
        f"{SUPPLY}/{name}/status": status,
        f"{SUPPLY}/{name}/capacity": percent,
    }


def charger(online, kind="Mains", name="AC"):
    return {f"{SUPPLY}/{name}/type": kind, f"{SUPPLY}/{name}/online": online}


MOUSE = {f"{SUPPLY}/hid/scope": "Device", **battery("Discharging", 5, "hid")}


@pytest.mark.parametrize(
    ("files", "on_mains", "frac"),
    [
        ({}, True, None),
        (charger(1), True, None),
        (MOUSE, True, None),
        (battery("Discharging", 29), False, 0.29),
        ({**battery("Discharging", 29), **charger(0)}, False, 0.29),
        ({**battery("Charging", 29), **charger(1)}, True, 0.29),
        ({**battery("Not charging", 100), **charger(1)}, True, 1.0),
        ({**battery("Full", 100), **charger(1, "USB", "ucsi")}, True, 1.0),
        ({**battery("Discharging", 60), **battery("Unknown", 100, "BAT1")}, False, 0.8),
    ],
)
def test_power(tmp_path, files, on_mains, frac):
    found = conditions.read(plant(tmp_path, files))
    assert (found.on_mains, found.battery_frac) == (on_mains, pytest.approx(frac))


def test_the_time_of_day_is_that_of_the_place_where_it_is_now(tmp_path, monkeypatch):
    """A laptop travels, and its owner's quiet hours with it."""
    zones = ("UTC", "Asia/Tokyo", "America/New_York", "Asia/Kolkata")
    minutes = {}
    for zone in (*zones, *zones):
        monkeypatch.setenv("TZ", zone)
        now = datetime.now(ZoneInfo(zone))
        minutes.setdefault(zone, now.hour * 60 + now.minute)
        late = conditions.read(tmp_path).minute - minutes[zone]
        assert late % DAY_MINUTES < 60
    monkeypatch.undo()
    time.tzset()


def test_the_hottest_sensor_counts_and_one_that_is_broken_does_not(tmp_path):
    assert conditions.temperature_c(tmp_path) is None
    plant(tmp_path, {f"{ZONE}0/temp": 45000, f"{ZONE}1/temp": -274000, f"{ZONE}2/temp": 0})
    assert conditions.temperature_c(tmp_path) == 45.0
    plant(tmp_path, {"sys/class/hwmon/hwmon3/temp1_input": 81500, f"{ZONE}3/temp": "nothing"})
    (tmp_path / f"{ZONE}3/temp").write_bytes(b"\xff\xfe")
    assert conditions.temperature_c(tmp_path) == 81.5


def test_a_rule_that_nothing_can_be_told_of_is_refused(tmp_path):
    check(OwnerRules(only_on_mains=True, min_battery_frac=0.5, quiet_hours=(0, 1)), tmp_path)
    with pytest.raises(AgentError, match="--max-temp: this machine tells no temperature"):
        check(OwnerRules(max_temp_c=80), tmp_path)
    check(OwnerRules(max_temp_c=80), plant(tmp_path, {f"{ZONE}0/temp": 45000}))
