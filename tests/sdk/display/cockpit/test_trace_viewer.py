"""The offline viewer of Chrome traces in a real browser: it asks nobody, shows what is there, and
names of others are text.
"""

import json
from dataclasses import replace

import pytest
from tests.sdk.display import example
from tests.sdk.display.cockpit.test_page import HOSTILE

from potluck.display import chrome_trace, trace_viewer

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens the viewer with these traces; nothing is asked of anybody."""
    context, faults = browser.new_context(viewport={"width": 1000, "height": 700}), []

    def open_it(*traces):
        path = trace_viewer.save(tmp_path / "t.html", "A trace", *traces)
        page = context.new_page()
        page.on("request", lambda r: r.url == path.as_uri() or faults.append(r.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message) or dialog.dismiss())
        page.goto(path.as_uri())
        return page

    yield open_it
    context.close()
    assert faults == []


def drawn(page):
    return page.evaluate("document.getElementById('trace').toDataURL()")


@pytest.mark.long
def test_it_shows_a_trace_zooms_and_tells_of_each_slice(opened, shots):
    page = opened(example.PREDICTED, example.MEASURED)
    status, trace = page.locator("#told"), page.locator("#trace")
    n_slices = len(example.PREDICTED.events) + len(example.MEASURED.events)
    assert f"{n_slices} slices" in status.text_content()
    page.screenshot(path=str(shots / "trace.png"))
    reference = drawn(page)
    page.get_by_role("button", name="+", exact=True).click()
    assert drawn(page) != reference
    page.get_by_role("button", name="all").click()
    assert drawn(page) == reference
    trace.focus()
    page.keyboard.press("Home")
    assert "0F0 on predicted: laptop" in status.text_content()
    assert "µs from" in status.text_content()


@pytest.mark.long
def test_names_of_others_are_text(opened):
    for name in HOSTILE:
        events = tuple(replace(e, device=name, label=name) for e in example.MEASURED.events)
        page = opened(replace(example.MEASURED, events=events))
        assert page.locator("img, iframe, script:not([id]):not([type=module])").count() == 0
        assert page.evaluate("window.hurt === undefined")


@pytest.mark.long
def test_another_trace_is_opened_and_what_is_none_is_said(opened, tmp_path):
    page = opened(example.MEASURED)
    other, wrong = tmp_path / "other.json", tmp_path / "wrong.json"
    other.write_text(json.dumps(chrome_trace.document([example.PREDICTED])))
    wrong.write_text("no trace")
    page.locator("#file").set_input_files(other)
    page.get_by_text(f"{len(example.PREDICTED.events)} slices").wait_for()
    page.locator("#file").set_input_files(wrong)
    page.get_by_text("no Chrome trace").wait_for()
    for odd in ([], {}, {"traceEvents": [None, 5, {"ph": "X"}, {"ph": "X", "ts": 1, "dur": 2}]}):
        other.write_text(json.dumps(odd))
        page.locator("#file").set_input_files([])
        page.locator("#file").set_input_files(other)
        page.wait_for_timeout(50)
