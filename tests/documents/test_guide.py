"""The guide and the API reference can be made: every link leads somewhere, and the code on pages
runs.
"""

import importlib.util
import re
import subprocess
import sys

import pytest
from tests.structure.lint import ROOT

if importlib.util.find_spec("pdoc") is None:
    pytest.skip("pdoc is not installed: pip install '.[docs]'", allow_module_level=True)

PAGES = ROOT / "sdk/docs/pages"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "sdk/docs/build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.long  # links of the sources are looked at each time, in test_links.py
def test_everything_is_made_and_every_link_leads_somewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("POTLUCK_HOME", str(tmp_path / "state"))
    line = [sys.executable, str(ROOT / "sdk/docs/build.py"), str(tmp_path / "out")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")}
    shown = re.findall(r"\]\((pictures/[^)]+)\)", (PAGES / "tutorial.md").read_text())
    assert shown
    assert {
        *shown,
        "index.html",
        "protocol.html",
        "reference/potluck.html",
        "reference/potluck/home.html",
    } <= made
    tutorial = (tmp_path / "out" / "tutorial.html").read_text()
    assert "largest difference below 1e-5: True" in tutorial


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_the_code_of_a_page_uses_no_name_that_it_does_not_have(build, page):
    """All is run only where the guide is made."""
    line = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F811", "-"]
    code = "\n".join(build.FENCE.findall(page.read_text()))
    done = subprocess.run(line, input=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_lost_link_is_named(build, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="here">A</h1><a href="b.html#there">b</a> <a href="#here">a</a>'
    )
    (tmp_path / "b.html").write_text(
        '<a href="a.html#here">a</a> <a href="https://example.org/none">far</a>'
    )
    assert build.lost_links(tmp_path) == ["a.html: b.html#there"]
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1><img src="c.svg">')
    assert build.lost_links(tmp_path) == ["b.html: c.svg"]


def test_what_code_prints_comes_after_it(build, tmp_path):
    text = "One\n\n```python\na = 1\n```\n\nTwo\n\n```python\nprint(a + 1)\n```\n"
    assert build.with_results(text, tmp_path / "pictures") == text + "\n```text\n2\n```\n"


def test_code_that_fails_stops_the_build(build, tmp_path):
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        build.with_results("```python\n1 / 0\n```\n", tmp_path / "pictures")


def test_every_page_exists_and_is_listed(build):
    sources = {page.source for page in build.PAGES}
    assert all((ROOT / source).is_file() for source in sources)
    assert {f"sdk/docs/pages/{path.name}" for path in PAGES.iterdir()} <= sources
