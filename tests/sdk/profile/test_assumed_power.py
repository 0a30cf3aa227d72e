"""Watts that nobody measured: whence they are, and that they say so."""

import pytest

from potluck.profile import library
from potluck.profile.assumed_power import assumed_watts, kind_called, plain_name
from potluck.profile.measure import device_of
from potluck.provenance import ASSUMED, MARKS, SIMULATED, UNKNOWN, worst

PI = "Raspberry Pi 5 Model B Rev 1.0"


def test_every_name_that_systems_use_finds_its_device_and_no_other():
    names = [
        (called, kind)
        for kind in library.names("devices")
        for called in library.load_device(kind).known_as
    ]
    assert len({plain_name(called) for called, _ in names}) == len(names)
    for called, kind in names:
        assert kind_called(called) == kind
        assert kind_called(called.upper()) == kind


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Raspberry Pi",
        "Raspberry Pi 500 Rev 1.0",
        "Raspberry Pi Compute Module 5",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4060 Ti",  # two cards of this name
        "NVIDIA Jetson Orin",
        "Not a Raspberry Pi 5 Model B",
        "@ 2.4 GHz",
        "Rev 1.0",
    ],
)
def test_what_is_only_like_a_known_device_is_not_taken_for_it(name):
    assert kind_called(name) == ""
    assert "guess" in assumed_watts({"hardware": [name], "cores": 4}).note


@pytest.mark.parametrize(
    ("capability", "idle_w", "busy_w", "source", "note"),
    [
        ({"hardware": [PI], "cores": 4}, 3.3, 11, ASSUMED, "raspberry-pi-5 in the library"),
        (
            {"hardware": ["Intel(R) Core(TM) i5-7400T CPU @ 2.40GHz"]},
            None,
            None,
            ASSUMED,
            "pc-i5-7400t in the library",
        ),
        (
            {"hardware": [PI], "power": {"idle_w": 1.0, "busy_w": 2.0, "radio_w": None}},
            1.0,
            2.0,
            ASSUMED,
            "owner",
        ),
        (
            {"power": {"idle_w": 1.0, "busy_w": 2.0}, "emulated": {"slowdown": 2.0}},
            1.0,
            2.0,
            SIMULATED,
            "played",
        ),
        ({"cores": 8, "threads": 2}, 0.8, 8.0, ASSUMED, "a guess"),
        (
            {
                "processors": [
                    {"name": "Intel N100", "kind": "cpu"},
                    {"name": "NVIDIA GeForce RTX 4090", "kind": "cuda"},
                ]
            },
            45.0,
            450,
            ASSUMED,
            "rtx-4090 in the library",
        ),
    ],
    ids=["library", "processor", "stated", "played", "guess", "graphics first"],
)
def test_watts_are_the_best_that_is_known_and_say_whence(capability, idle_w, busy_w, source, note):
    device = device_of("a", {"memory_bytes": 2**30, **capability})
    if idle_w is not None:
        assert (device.idle_w, device.busy_w) == (pytest.approx(idle_w), pytest.approx(busy_w))
    assert 0 <= device.idle_w <= device.busy_w
    assert (device.power_mark, device.power_error_w) == (source, None)
    assert note in device.power_note


@pytest.mark.parametrize("capability", [{}, {"emulated": {"slowdown": 2.0}, "cores": 4}])
def test_what_nobody_knows_stays_unknown(capability):
    device = device_of("a", {"memory_bytes": 2**30, **capability})
    assert (device.idle_w, device.busy_w, device.power_mark) == (None, None, UNKNOWN)


@pytest.mark.long
def test_every_device_of_the_library_that_is_known_by_a_name_has_watts_in_order():
    for kind in library.names("devices"):
        for called in library.load_device(kind).known_as:
            found = assumed_watts({"hardware": [called]})
            assert 0 <= found.idle_w <= found.busy_w
            assert found.radio_w >= 0


def test_a_sum_is_as_good_as_its_worst_part():
    for at, mark in enumerate(MARKS):
        for other in MARKS[: at + 1]:
            assert worst([mark, other]) == worst([other, mark]) == mark
    assert worst([]) == UNKNOWN
