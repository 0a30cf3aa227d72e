"""Human units: three digits, the fitting prefix, and `–` for what nobody knows."""

import math

import pytest

from potluck import units

CASES = [
    (units.duration, 0, "0 s"),
    (units.duration, 5e-9, "5.00 ns"),
    (units.duration, 0.01234, "12.3 ms"),
    (units.duration, 0.9996, "1.00 s"),
    (units.duration, 12.34, "12.3 s"),
    (units.duration, 200, "3 min 20 s"),
    (units.duration, 4000, "1 h 6 min"),
    (units.duration, None, "–"),
    (units.duration, math.nan, "–"),
    (units.size, 999, "999 B"),
    (units.size, 1000, "0.977 KiB"),
    (units.size, 1536, "1.50 KiB"),
    (units.size, 5e9, "4.66 GiB"),
    (units.size, None, "–"),
    (units.rate, 12 * 2**20, "12.0 MiB/s"),
    (units.energy, 0.25, "250 mJ"),
    (units.energy, 1200, "1.20 kJ"),
    (units.power, 4.25, "4.25 W"),
    (units.count, 4_650_000, "4.65 M"),
    (units.percent, 0.614, "61 %"),
    (units.percent, 0.001, "<1 %"),
    (units.percent, 0, "0 %"),
    (units.change, -0.0549, "-5.5 %"),
]


@pytest.mark.parametrize(("show", "value", "expected"), CASES)
def test_shows_a_quantity_in_human_units(show, value, expected):
    assert show(value) == expected


SMALL = [10.0**-power * sign for power in range(1, 30) for sign in (7, -7)]


@pytest.mark.parametrize("show", [units.duration, units.energy, units.power, units.count])
@pytest.mark.parametrize("value", SMALL)
def test_what_is_shown_is_never_a_row_of_noughts(show, value):
    shown = show(value)
    assert shown.strip(" sJW-") == "0" or "0.0000" not in shown, shown
    assert len(shown) <= 11


def test_three_digits_survive_rounding_up_to_the_next_power_of_ten():
    assert [units.three_digits(value) for value in (0.9996, 9.996, 99.96, 999.6)] == [
        "1.00",
        "10.0",
        "100",
        "1000",
    ]
