"""Screenshots against those that are kept: another font is let pass, a broken layout is not."""

import pytest
from tests.sdk.display.cockpit import likeness
from tests.sdk.display.cockpit.test_page import opened, played, served, started
from tests.sdk.display.test_html import everything

from potluck.display import markup

pytestmark = pytest.mark.slow
__all__ = ["opened", "played", "served"]

SIZES = {"wide": (1200, False), "dark": (1200, True), "narrow": (400, False)}
STYLED = """style => { const made = document.createElement('style');
  made.textContent = style; ROOT().append(made); }"""
FONTS = ("'DejaVu Serif'", "'DejaVu Sans Condensed'", "Arial", "monospace")
BROKEN = {
    "sections one below the other": "main{display:block}",
    "cards on top of each other": ".card{position:absolute}",
    "no header": "header{display:none}",
    "no task stream": ".stream{visibility:hidden}",
    "no plans": "svg{visibility:hidden}",
    "letters twice as large": ".c{font-size:20px} .c *{font-size:20px!important}",
    "sliders gone": ".limits{display:none!important}",
    "white on dark": ".c{--paper:#000!important;--ink:#fff!important}",
    "cards cut off": ".buses{max-height:40px}",
    "shifted": ".c{margin-left:60px}",
}


def shot(page):
    page.wait_for_timeout(1400)
    return page.screenshot(full_page=True)


@pytest.mark.long
@pytest.mark.parametrize("name", SIZES)
def test_the_page_looks_as_it_did(opened, played, shots, name):
    started(played)
    width, dark = SIZES[name]
    page = opened(width=width, dark=dark)
    page.get_by_text("you are here").wait_for()
    likeness.check(shot(page), f"cockpit-{name}", shots)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_records_look_as_they_did(browser, shots, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.set_content(markup.page("A page", *everything().values()))
    likeness.check(shot(page), f"records-{scheme}", shots)
    context.close()


@pytest.mark.long
def test_another_font_is_let_pass_and_what_is_broken_is_not(opened, played):
    """The kept picture finds each of these faults, and none where only letters differ."""
    started(played)
    page = opened(width=1200)
    page.get_by_text("you are here").wait_for()
    found, passed = {}, set()
    for name, style in {**{f: f".c{{font-family:{f}!important}}" for f in FONTS}, **BROKEN}.items():
        page.evaluate(STYLED, style)
        png = shot(page)
        found[name] = likeness.unlike(png, "cockpit-wide")
        passed |= {name} if likeness.is_alike(png, "cockpit-wide") else set()
        page.evaluate("ROOT().lastElementChild.remove()")
    assert passed == set(FONTS), str(found)
