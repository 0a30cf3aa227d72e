"""What cells print, in a real browser: tables sort by a click and by the keyboard, numbers by value
and unit; light and dark; without scripts they are plain tables.
"""

import random

import pytest
from tests.sdk.display import example
from tests.sdk.display.test_html import everything

from potluck import units
from potluck.display import html, markup
from potluck.display.tables import Table

pytestmark = pytest.mark.slow

VALUES = {
    "time": ([0.0, 3e-7, 2e-5, 4e-3, 0.12, 1.0, 31.0, 99.0, 130.0, 4000.0, 9e4], units.duration),
    "size": ([0, 3, 900, 2000, 5e5, 3e6, 1.2e9, 7e12], units.size),
    "rate": ([1, 5e3, 2e6, 9e8], units.rate),
    "energy": ([0.0, 4e-6, 2e-3, 0.5, 8.0, 2e3], units.energy),
    "power": ([0.0, 2e-3, 0.9, 42.0, 1300.0], units.power),
    "count": ([0, 7, 999, 4.6e6, 8e9, 3e12], units.count),
    "share": ([0.0, 0.001, 0.2, 1.0, 3.5], units.percent),
    "change": ([-0.5, -0.03, 0.0, 0.1, 2.0], units.change),
    "words": (["", "b", "device-2", "device-10", "é", "z"], str),
}


@pytest.fixture
def page(browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


def put(page, *fragments):
    page.set_content(markup.page("A page", *fragments))


def column(page, within=""):
    return page.eval_on_selector_all(
        f"{within} tbody td:first-child", "all => all.map(e => e.textContent)"
    )


@pytest.mark.long
@pytest.mark.parametrize("name", VALUES)
def test_a_column_sorts_by_value_whatever_its_units(page, name):
    values, say = VALUES[name]
    texts = [say(value) for value in values]
    given = [*texts, units.UNKNOWN] if name != "words" else [*texts]
    random.Random(0).shuffle(given)
    rows = tuple((text, str(i)) for i, text in enumerate(given))
    put(page, html.of_table("x", Table(title="T", columns=(f">{name}", "row"), rows=rows)))
    heading = page.get_by_role("button", name=name)
    heading.click()
    known = [text for text in texts if text]
    assert [t for t in column(page) if t not in ("", units.UNKNOWN)] == known
    assert column(page)[-1] in ("", units.UNKNOWN)  # what nobody knows stays below
    heading.click()
    assert [t for t in column(page) if t not in ("", units.UNKNOWN)] == known[::-1]
    assert column(page)[-1] in ("", units.UNKNOWN)
    assert page.locator("th[aria-sort=descending]").count() == 1


@pytest.mark.long
def test_the_keyboard_sorts_and_the_total_stays_below(page):
    put(page, html.profile(example.PROBLEM))
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")  # the numbers
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=ascending]").count() == 1
    assert page.locator("tfoot td").first.text_content() == "total"
    before = column(page, "details[open]")
    page.keyboard.press("Space")
    assert column(page, "details[open]") == before[::-1]


@pytest.mark.long
def test_two_fragments_and_one_that_is_drawn_again_sort_each_for_itself(page):
    one, two = (
        html.of_table(n, Table(title=n, columns=("a",), rows=((f"{n}2",), (f"{n}1",))))
        for n in "xy"
    )
    put(page, one, two, one)
    page.locator("th button").nth(0).click()
    assert column(page) == ["x1", "x2", "y2", "y1", "x2", "x1"]
    assert page.locator("th button").count() == 3


def test_where_scripts_are_off_tables_are_plain(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    put(page, html.plans([example.PLAN], example.PLAN))
    assert page.locator("th button").count() == 0
    page.locator("summary").first.click()
    assert page.locator("th", has_text="planner").is_visible()
    context.close()


@pytest.mark.long
@pytest.mark.parametrize("width", [320, 400, 800])
def test_a_wide_table_scrolls_in_its_place(browser, width):
    """The page itself is no wider than a phone."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_content(markup.page("A page", *everything().values()))
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_records_are_readable_on_light_and_on_dark(browser, shots, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    put(page, *everything().values())
    page.screenshot(path=str(shots / f"records-{scheme}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.screenshot(path=str(shots / f"records-{scheme}-open.png"), full_page=True)
    assert errors == []
    context.close()
