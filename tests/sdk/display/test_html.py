"""HTML for notebooks: escaped, well-formed, the same for the same record, self-contained."""

import importlib
import pkgutil
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import potluck
from potluck.coordinator.detached_run import DetachedRun
from potluck.display import chart, headline, html, markup, text, views
from potluck.display_hooks import Shown
from potluck.run.comparison import Comparison, Transfers
from potluck.run.history import History
from potluck.sessions.members import Member

from . import example

HOSTILE = "<script>alert('x')</script>\"&\x00"
VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Collects what is not closed as it was opened, and every tag."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open = []
        self.tags = set()
        self.faults = []
        self.ids = []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


COMPARED = Comparison(
    predicted=example.PREDICTED,
    measured=example.MEASURED,
    terms={"compute": (0.1, 0.2)},
    transfers=(
        Transfers(
            source="laptop",
            target="phone",
            n=1,
            nbytes=4096,
            seconds=(0.002, 0.003),
            median_s=(0.002, 0.003),
        ),
    ),
)


def everything() -> dict[str, str]:
    plans = [
        replace(example.PLAN, latency_s=s, energy_j=j)
        for s, j in ((0.1, 4.0), (0.2, 3.0), (0.3, 5.0))
    ]
    return {
        "devices": html.devices([example.LAPTOP, example.PHONE]),
        "profile": html.profile(example.PROBLEM),
        "plan": html.plan(example.PLAN, example.PROBLEM),
        "plans": html.plans(plans, plans[0]),
        "trace": html.trace(example.MEASURED, example.PREDICTED),
        "progress": html.progress("profiling", 0.4, "conv1"),
        "layers": html.layers(example.PROBLEM.layers, "Model"),
        "history": html.history([1.0, 0.5], [0.1, 0.1], ["a last batch was smaller"]),
        "comparison": html.compared(COMPARED),
        "words": markup.words("it <failed>"),
        "picture": html.picture(chart.loss({"a": [1.0, 0.5]})),
    }


def without_ours(fragment):
    """Without the one script that sorts tables, which is the same everywhere."""
    return fragment.replace(markup.SORTED, "")


PICTURED = set(everything()) - {"progress", "words", "picture"}


@pytest.mark.parametrize("name", sorted(PICTURED))
def test_a_picture_comes_first_and_its_numbers_are_folded_away(name):
    fragment = everything()[name]
    shown = fragment[fragment.index('<div class="potluck"') :]
    assert shown.index("<svg") < shown.index("<details>") < shown.index("<table>")
    assert shown.count("<table>") == len(re.findall(r"<table>(?=.*?</details>)", shown, re.S))


@pytest.mark.parametrize("name", everything())
def test_all_look_alike(name):
    """One style sheet, one script, one frame."""
    fragment = everything()[name]
    assert fragment.startswith(markup.STYLE)
    assert fragment.count("<style>") == 1
    assert fragment.count("<script>") == ("<thead>" in fragment)


def test_the_headline_says_how_many_times_as_fast_as_one_device_alone():
    page = html.plan(example.PLAN, example.PROBLEM)
    assert '<p class="headline">123 ms a step on laptop, phone: no device could do it' in page
    stage = replace(example.PLAN.stages[0], stop=3)
    alone = replace(example.PLAN, stages=(stage,), latency_s=0.2468, energy_j=6.8)
    assert headline.against(example.PLAN, alone) == (
        "2 times as fast as laptop alone, the best, with 0.5 times as many joules"
    )
    measured = replace(example.PLAN, energy_source="measured")
    assert headline.against(measured, replace(alone, energy_source="assumed")).endswith(
        "0.5 times as many joules assumed"
    )
    alike = replace(alone, latency_s=0.1296, energy_j=example.PLAN.energy_j)
    assert headline.against(example.PLAN, alike) == (
        "1.05 times as fast as laptop alone, the best, with as many joules"
    )


@pytest.mark.parametrize("name", everything())
def test_every_fragment_is_well_formed_and_loads_nothing(name):
    fragment = without_ours(everything()[name])
    parsed = Balanced(fragment)
    assert parsed.faults == []
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert not re.search(r"(src|href)=|url\(|@import", fragment)
    assert "script" not in parsed.tags


@pytest.mark.parametrize("name", everything())
def test_the_same_record_gives_the_same_html(name):
    assert everything()[name] == everything()[name]


@pytest.mark.parametrize("name", everything())
def test_a_plain_text_stands_ready_where_styles_are_stripped(name):
    assert '<pre class="potluck-plain">' in everything()[name]


def test_a_hostile_device_name_is_text_everywhere():
    device = replace(example.LAPTOP, name=HOSTILE)
    events = tuple(
        replace(event, device=HOSTILE, peer=HOSTILE, label=HOSTILE)
        for event in example.MEASURED.events
    )
    trace = replace(example.MEASURED, events=events, busy_s={HOSTILE: 1.0})
    plan = replace(
        example.PLAN,
        stages=(replace(example.PLAN.stages[0], devices=(HOSTILE,)),),
        unused={HOSTILE: HOSTILE},
    )
    for fragment in (
        html.devices([device]),
        html.trace(trace),
        html.plan(plan),
        html.progress(HOSTILE, 0.5, HOSTILE),
    ):
        parsed = Balanced(without_ours(fragment))
        assert "script" not in parsed.tags
        assert parsed.faults == []
        assert "&lt;script&gt;" in fragment
        assert "\x00" not in fragment


def test_memory_that_does_not_fit_is_marked():
    assert "bar over" in html.plan(example.PLAN, example.PROBLEM)


def test_a_page_is_whole_and_follows_light_and_dark(tmp_path):
    path = markup.save(tmp_path / "page.html", "A <home>", *everything().values())
    document = path.read_text(encoding="utf-8")
    parsed = Balanced(document.removeprefix("<!doctype html>\n"))
    assert parsed.faults == []
    assert parsed.open == []
    assert "<title>A &lt;home&gt;</title>" in document
    assert '<meta name="color-scheme" content="light dark">' in document


RECORDS = [
    example.PROBLEM,
    example.PLAN,
    example.MEASURED,
    History(losses=(1.0, 0.5), rows=(8, 8), step_s=(0.1, 0.1)),
    COMPARED,
    Member(name="phone"),
]


def test_a_comparison_is_its_table_wherever_it_is_written():
    assert repr(COMPARED) == str(COMPARED) == text.compared(COMPARED)


def test_many_plans_are_counted_not_listed():
    n = html.MOST_PLANS + 3
    plans = [
        replace(example.PLAN, planner=f"p{i}", latency_s=0.1 + i / 100, energy_j=4.0)
        for i in range(n)
    ]
    assert "and 3 more" in html.plans(plans, plans[0])


@pytest.mark.parametrize("record", RECORDS)
def test_records_show_themselves_in_notebooks(record):
    assert record._repr_html_().startswith("<style>")


def test_whatever_shows_itself_has_a_view():
    """Also what only a coordinator, a lab or a service makes."""
    bases = {"Tabular", "Pictured", "Watched"}  # of values, and none by themselves
    found = set()
    for module in pkgutil.walk_packages(potluck.__path__, "potluck."):
        if not re.match(r"potluck\.(bench|testing|integrations|commands|__main__)", module.name):
            values = vars(importlib.import_module(module.name)).values()
            found |= {v for v in values if isinstance(v, type) and issubclass(v, Shown)}
    unseen = {
        kind.__name__
        for kind in found - {Shown}
        if views.as_html.dispatch(kind) is views.as_html.dispatch(object)
    }
    assert len(found) > 15
    assert unseen == bases


class Detached(DetachedRun):
    """As a coordinator tells of it."""

    job = "digits-1"
    state, why = "training", ""
    step, n_steps = 4, 8
    losses = (2.0, 1.0)
    notes = ("<b>kitchen</b> left",)

    def __init__(self):
        """Nobody is asked."""


def test_a_detached_training_shows_its_curve_and_how_far_it_is():
    shown = Detached()._repr_html_()
    assert "step 4 of 8" in shown
    assert "&lt;b&gt;kitchen" in shown
    assert shown.count("</svg>") == 1
