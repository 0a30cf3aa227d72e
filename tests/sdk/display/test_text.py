"""Tables for terminals, whole, as they are printed."""

from dataclasses import replace

import pytest

from potluck.display import tables, text
from potluck.display.tables import Table

from . import example


def lines(block: str) -> str:
    return "\n".join(line.rstrip() for line in block.strip("\n").split("\n"))


def test_prints_devices_with_unknown_power_as_a_dash():
    assert text.devices([example.LAPTOP, example.PHONE]) == lines("""
Devices
device  kind      memory    idle    busy   radio  watts    backends
──────  ──────  ────────  ──────  ──────  ──────  ───────  ────────
laptop  laptop  1.00 GiB  3.00 W  28.0 W  1.50 W  assumed  torch
phone   phone    512 MiB       –       –       –  unknown  torch
""")


def test_prints_a_plan_with_memory_needed_and_available_and_says_what_does_not_fit():
    assert text.plan(example.PLAN, example.PROBLEM) == lines("""
Plan of asteroid for training of digits-cnn
stage  layers              devices  rows  warm-up
─────  ──────────────────  ───────  ────  ───────
    0  0–1: conv1 … conv2  laptop      8        2
    1  2: head             phone       8        1
  4 × 8 rows per step, predicted 123 ms, 3.40 J
  not used: nano (slower than doing without it)

Memory
device   needed  available  used
──────  ───────  ─────────  ─────────────────────────
laptop  700 MiB   1.00 GiB  ████████▎··· 68 %
phone   600 MiB    512 MiB  ███████████▶ does not fit
""")


def test_prints_the_time_of_each_layer_on_each_device_and_which_are_estimated():
    assert text.profile(example.PROBLEM).startswith(
        lines("""
Profile of digits-cnn
layer   weights   laptop    phone
─────  ────────  ───────  ───────
conv1  1.00 KiB  12.0 ms  30.0 ms
conv2  4.00 KiB  12.0 ms  30.0 ms
head        0 B  12.0 ms  30.0 ms
total  5.00 KiB  36.0 ms  90.0 ms
  forward + backward at the tabulated batch size nearest 8 rows
  estimated, not measured: phone
""")
    )


def test_prints_predicted_against_measured_with_where_each_energy_comes_from():
    assert text.comparison(example.PREDICTED, example.MEASURED) == lines("""
Predicted against measured
what             device         predicted        measured  difference
───────────────  ──────  ────────────────  ──────────────  ──────────
time per step    all              48.0 ms         60.0 ms     -20.0 %
busy per step    laptop           13.0 ms         16.2 ms     -20.0 %
busy per step    phone            30.0 ms         37.5 ms     -20.0 %
energy per step  laptop  500 mJ simulated  625 mJ assumed     -20.0 %
peak memory      laptop          1.00 MiB        1.00 MiB      within
peak memory      phone           2.00 MiB        2.00 MiB      within
""")


def test_energy_and_busy_time_are_per_step():
    twice = replace(example.MEASURED, step_s=(0.06, 0.06))
    rows = {row[:2]: row[3] for row in tables.comparison(example.PREDICTED, twice).rows}
    assert rows["energy per step", "laptop"] == "312 mJ assumed"
    assert rows["busy per step", "phone"] == "18.8 ms"


def test_prints_a_trace_by_device():
    assert text.trace(example.MEASURED) == lines("""
Trace (measured)
device  busy                   sent  received  energy  source   peak memory
──────  ─────────────────  ────────  ────────  ──────  ───────  ───────────
laptop  ███▎········ 27 %  4.00 KiB  4.00 KiB  625 mJ  assumed     1.00 MiB
phone   ███████▌···· 62 %  4.00 KiB  4.00 KiB       –  –           2.00 MiB
  1 step, median 60.0 ms
""")


def test_marks_the_best_of_several_plans():
    rows = tables.plans(
        [replace(example.PLAN, planner="other"), example.PLAN], best=example.PLAN
    ).rows
    assert [row[0] for row in rows] == ["0", "→ 1"]


def test_plans_that_divide_the_devices_alike_are_one_row():
    variants = [replace(example.PLAN, latency_s=0.1 + i, energy_j=4.0) for i in range(3)]
    table = tables.plans([*variants, replace(example.PLAN, stages=example.PLAN.stages[:1])])
    assert [row[0] for row in table.rows] == ["0", "3"]
    assert table.notes == (
        "2 not listed differ from one that is only in cuts, shares or micro-batches",
    )


def test_control_characters_of_a_device_name_never_reach_the_terminal():
    hostile = replace(example.PHONE, name="pho\x1b[2Jne\n\u202egnp")
    shown = text.devices([hostile])
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert len(shown.splitlines()) == 4


def test_wide_letters_keep_the_columns_aligned():
    table = Table(title="t", columns=("name", "x"), rows=(("電話", "1"), ("phone", "2")))
    assert text.render(table).splitlines()[3:] == ["電話   1", "phone  2"]


@pytest.mark.parametrize(
    ("frac", "drawn"),
    [(0, "····"), (0.5, "██··"), (0.53, "██▏·"), (1, "████"), (1.2, "███▶"), (-1, "····")],
)
def test_draws_a_bar_in_eighths(frac, drawn):
    assert text.bar(frac, cells=4) == drawn


def test_a_table_with_a_row_of_wrong_length_cannot_exist():
    with pytest.raises(ValueError, match="2 cells, expected 1"):
        Table(title="t", columns=("a",), rows=(("1", "2"),))


def test_stages_that_take_their_own_micro_batches_are_told():
    first, second = example.PLAN.stages
    own = replace(first, shares=(2,), warm_up=8, micro_batch=2)
    plan = replace(example.PLAN, stages=(own, second))
    assert "stage 0 takes 16 × 2 rows" in tables.stages(plan).notes
    assert not any("takes" in note for note in tables.stages(example.PLAN).notes)
    cells = [tables.plans([each]).rows[0] for each in (plan, example.PLAN)]
    assert "16 × 2 | 4 × 8" in cells[0]
    assert "4 × 8" in cells[1]
