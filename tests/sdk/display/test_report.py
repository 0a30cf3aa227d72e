"""A run's report: one page that tells everything, loads nothing, and sorts."""

import re
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

from potluck.display import report
from potluck.run.history import History, Recovery
from potluck.testing.memory import memory_home

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    _, model = make_model("mlp")
    with memory_home(2) as home:
        profile = home.profile(model, rows=(2, 4), repeats=1).wait()
        stages = (("local-1",), (4,)), (("local-2",), (4,))
        plan = make_plan(model, *stages, micro_batch=4, n_micro_batches=2)
        run = home.deploy(replace(plan, model=profile.model), model).wait()
        run.fit([make_data("mlp", 8)] * 4).wait()
        path = run.report(tmp_path_factory.mktemp("report") / "report.html")
        return path.read_text(encoding="utf-8")


@pytest.mark.long
def test_it_tells_plan_step_comparison_learning_and_events(page):
    for words in ("The plan", "predicted and measured", "Learning", "What happened", "4 steps"):
        assert words in page
    assert page.count("<svg") >= 3
    assert "times as fast as" in page


@pytest.mark.long
def test_it_loads_nothing(page):
    assert not re.search(r"(src|href)=|url\(|@import|https?://(?!www\.w3\.org)", page)


def test_what_happened_is_told_by_step():
    lost = Recovery(
        step=9,
        device="b",
        cause="b <is> gone.",
        devices=("a",),
        planner="single",
        n_again=2,
        seconds=1.0,
    )
    (row,) = report.events(History(recoveries=(lost,))).rows
    assert row == ("9", "lost", lost.words)
    assert report.events(History()).notes == ("nothing but its steps",)
