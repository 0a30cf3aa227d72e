"""The frame of the benches: fair order, ratios, table, JSON; no times are asserted."""

import json
import sys
import types
from dataclasses import replace

import pytest

from potluck import cli
from potluck.bench import harness, planners
from potluck.errors import FileError, UserError

RESULT = harness.Result(
    name="stream",
    figures={"ratio_to_curve_16mib": 0.931, "mib_per_s": 651.2},
    settings={"repeats": 5},
    goals={"ratio_to_curve_16mib": (">=", 0.9)},
)


@pytest.fixture
def fake_bench(monkeypatch):
    """A bench that reports its settings back."""
    module = types.SimpleNamespace(
        SETTINGS={"repeats": 5, "rows": 32},
        run=lambda settings: harness.Result(
            name="stream", figures={"repeats": settings["repeats"]}, settings=settings, goals={}
        ),
    )
    monkeypatch.setitem(sys.modules, "potluck.bench.stream", module)


def test_sides_take_turns_after_one_warm_up_each():
    order = []
    seconds = harness.interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3
    )
    assert "".join(order) == "ab" + "ababab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_of_the_rounds():
    seconds = {"ours": (1.0, 9.0, 3.0), "theirs": (1.0, 3.0, 2.0)}
    assert harness.ratio(seconds, "ours", "theirs") == 1.5


def test_the_table_tells_which_goals_are_met():
    table = harness.text(RESULT).splitlines()
    assert table[0] == "bench stream"
    assert table[3].split() == ["ratio_to_curve_16mib", "0.931", ">=", "0.9", "met"]
    assert table[4].split() == ["mib_per_s", "651"]


def test_notes_stand_below_the_table_and_in_the_document():
    noted = replace(RESULT, notes=("Read it so.",))
    assert "Read it so." in harness.text(noted)
    assert harness.document(noted)["notes"] == ["Read it so."]


def test_all_cases_of_the_papers_count_and_baselines_that_are_our_candidates_are_told_apart():
    assert planners.SETTINGS["every"] == 1
    assert planners.CANDIDATES == (
        "single",
        "data parallel",
        "gpipe",
        "pipedream",
        "hetpipe",
        "alpa",
        "dora",
    )
    assert planners.OTHERS == ("edgeshard", "dapple", "metis", "asteroid")


def test_json_holds_name_figures_and_settings(fake_bench, tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert cli.main(["bench", "stream", "--set", "repeats=2", "--json", str(path)]) == 0
    assert json.loads(path.read_text()) == {
        "name": "stream",
        "figures": {"repeats": 2},
        "settings": {"repeats": 2, "rows": 32},
    }
    assert "bench stream" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["repeats", "repeats=many", "=", ""])
def test_an_unreadable_setting_is_refused(text):
    with pytest.raises(UserError, match="KEY=NUMBER"):
        harness.parse_setting(text)


def test_an_unknown_setting_is_refused_with_those_there_are(fake_bench):
    with pytest.raises(UserError, match=r"no setting .speed.*repeats, rows"):
        harness.run("stream", {"speed": 1})


def test_a_file_that_cannot_be_written_is_a_file_error(fake_bench, tmp_path, capsys):
    assert cli.main(["bench", "stream", "--json", str(tmp_path / "no" / "figures.json")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert issubclass(FileError, UserError)
