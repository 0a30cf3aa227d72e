"""Every figure of power and energy that people see says where it comes from."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.sdk.display import example

from potluck.adapt.mixture import mix
from potluck.display import chart, power_views, record_pictures, tables
from potluck.display.scene import Text
from potluck.records import Device
from potluck.sessions.power_reading import PowerReading
from potluck_wire.messages import Reading


def words_of(scene):
    """All that is written in it."""
    return " ".join(item.text for item in scene.items if isinstance(item, Text))


@pytest.mark.parametrize(
    ("source", "mark"), [("measured", "measured"), ("estimated", "assumed"), ("simulated",) * 2]
)
def test_the_watts_of_a_device_say_where_they_come_from(source, mark):
    member = SimpleNamespace(
        reading=Reading(watts=5.0, source=source),
        capability={"power": {"idle_w": 1.0}},
        name="a",
        status="ready",
    )
    assert tables.power_of(member) == f"5.00 W {mark}"
    assert f"5.00 W {mark}" in words_of(record_pictures.members([member]))


def test_watts_of_a_plan_s_device_and_joules_of_plans_say_it_in_pictures():
    device = Device(name="a", memory_bytes=1, idle_w=1.0, busy_w=3.0, power_source="measured")
    assert "3.00 W measured busy" in words_of(record_pictures.devices([device]))
    plan = replace(example.PLAN, energy_source="assumed")
    measured = replace(example.PLAN, energy_source="measured")
    assert "joules assumed" in words_of(chart.pareto([plan, measured]))


def test_joules_so_far_and_curves_of_readings_say_it():
    reading = PowerReading(device="a", at_s=1.0, watts=5.0, joules=7.0, source="assumed")
    history = {"a": (reading, replace(reading, at_s=2.0))}
    (row,) = power_views.table(history, {}).rows
    assert "7.00 J assumed" in row
    assert "a assumed" in words_of(power_views.chart(history))


def test_a_device_that_has_told_nothing_yet_has_its_name_alone():
    assert any(
        getattr(item, "text", "") == "phone" for item in power_views.chart({"phone": ()}).items
    )


def test_a_mixture_of_plans_is_as_sure_as_the_worst_of_them():
    slow = replace(example.PLAN, latency_s=2.0, energy_j=2.0, energy_source="measured")
    fast = replace(example.PLAN, latency_s=1.0, energy_j=4.0, energy_source="assumed")
    mixed = mix([slow, fast], n_steps=10, deadline_s=15.0)
    assert (len(mixed.plans), mixed.energy_source) == (2, "assumed")
