"""Measured watts are kept beside the keys, and a file that does not hold is one clear error."""

import json
import stat

import pytest

from potluck.errors import FileError
from potluck.profile.power_file import FILE, MOST_BYTES, keep_watts, kept_watts
from potluck.profile.power_model import Watts
from potluck.provenance import ASSUMED, MEASURED

WATTS = Watts(
    idle_w=2.0, busy_w=9.5, radio_w=0.0, source=MEASURED, note="by its meter", error_w=0.1
)
ROW = {"idle_w": 2.0, "busy_w": 9.5, "radio_w": 0.5, "source": MEASURED}


def test_what_was_measured_is_known_in_the_next_session(tmp_path):
    keep_watts({"key": WATTS}, tmp_path)
    assert kept_watts(tmp_path) == {"key": WATTS}
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_without_a_folder_or_a_file_nothing_is_known(tmp_path):
    keep_watts({"key": WATTS}, None)
    keep_watts({}, tmp_path)
    assert kept_watts(None) == kept_watts(tmp_path) == {}
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "row",
    [
        ROW | {"source": ASSUMED},
        ROW | {"idle_w": -1.0},
        ROW | {"busy_w": "nine"},
        ROW | {"busy_w": float("inf")},
        ROW | {"radio_w": float("nan")},
        ROW | {"idle_w": True},
        ROW | {"volts": 5.0},
        [1.0, 2.0],
        None,
    ],
)
def test_a_row_that_cannot_be_is_told_with_its_file(tmp_path, row):
    (tmp_path / FILE).write_text(json.dumps({"schema": 1, "devices": {"key": row}}))
    with pytest.raises(FileError, match=r"watts\.json cannot be used"):
        kept_watts(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 2, "devices": {}}', '{"schema": 1}', "x" * (MOST_BYTES + 1)],
)
def test_another_file_is_told(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FileError, match=r"watts\.json"):
        kept_watts(tmp_path)


def test_a_note_of_the_file_holds_nothing_that_a_terminal_obeys(tmp_path):
    document = {"schema": 1, "devices": {"key": ROW | {"note": "by\x1b[2J its meter"}}}
    (tmp_path / FILE).write_text(json.dumps(document))
    assert "\x1b" not in kept_watts(tmp_path)["key"].note
