"""Amounts that people write become SI numbers, or an error that shows what was expected."""

import pytest

from potluck.errors import UserError
from potluck.units import parse_bytes, parse_rate, parse_seconds


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_bytes, "512 MiB", 512 * 2**20),
        (parse_bytes, "4GB", 4_000_000_000),
        (parse_bytes, "1.5 kB", 1500),
        (parse_bytes, 7, 7),
        (parse_rate, "100 Mbit/s", 12.5e6),
        (parse_rate, "1 Gbps", 125e6),
        (parse_rate, "12 MB/s", 12e6),
        (parse_rate, 5, 5.0),
        (parse_seconds, "20 ms", 0.02),
        (parse_seconds, "2min", 120.0),
    ],
)
def test_reads(read, text, value):
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_bytes, "lots"),
        (parse_bytes, "4 XB"),
        (parse_rate, "5 miles"),
        (parse_rate, "5"),
        (parse_seconds, "3 fortnights"),
        (parse_bytes, ""),
    ],
)
def test_refuses(read, text):
    with pytest.raises(UserError, match="cannot read the amount"):
        read(text)
