"""Links between documents lead somewhere, and every path that a document names is in the
repository.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from tests.structure.lint import ROOT

FOLDERS = ("sdk", "device_agent", "notebooks", "profiles", "tests")
DOCUMENTS = sorted(
    {*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))}
)
# A path may be written from the document, from the root, or from the folder of a package.
BASES = (
    "",
    "sdk",
    "sdk/potluck",
    "device_agent",
    "device_agent/potluck_agent",
    "device_agent/potluck_wire",
)
SUFFIXES = (".py", ".md", ".toml", ".json", ".ipynb", ".png")
MADE = {"potluck-demo/"}  # by the demo
# by the code of the guide's pages: tests/documents/test_guide.py asks for these
DRAWN = "pictures/"
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")  # `devices/NAME.toml`

PARAMETERS = {"argvalues": DOCUMENTS, "ids": lambda path: path.relative_to(ROOT).as_posix()}


@cache
def prose(document):
    """The text without its fenced blocks."""
    return FENCED.sub("", document.read_text(encoding="utf-8"))


def links(text):
    """(target, anchor) of every link into the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target.partition("#")[::2] for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """What GitHub calls the headings of a document."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def paths(text):
    """What is written in backticks and looks like a path below the root.

    A bare name only where it is a module.
    """
    for span in re.findall(r"`([^`\n]+)`", text):
        first = span.partition("/")[0]
        if (
            not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", span)
            or span in MADE
            or first == "build"  # made by some targets
            or PLACEHOLDER.fullmatch(first)
        ):
            continue
        if span.endswith(("/", ".py", ".md")) or (
            "/" in span and (span.endswith(SUFFIXES) or is_folder(first))
        ):
            yield span


def is_folder(name):
    return any((ROOT / base / name).is_dir() for base in BASES)


def exists(span, document):
    pattern = PLACEHOLDER.sub("*", span.rstrip("/")) if "/" in span else span
    places = [document.parent, *(ROOT / base for base in BASES)]
    if any(next(place.glob(pattern), None) for place in places):
        return True
    return "/" not in span and any(next((ROOT / folder).rglob(span), None) for folder in FOLDERS)


@pytest.mark.parametrize("document", **PARAMETERS)
def test_links_lead_somewhere(document):
    for target, anchor in links(prose(document)):
        if target.startswith(DRAWN):
            continue
        leads_to = (document.parent / target).resolve() if target else document
        assert leads_to.exists(), f"{target} is linked and not there"
        if anchor:
            assert anchor in anchors(prose(leads_to)), (
                f"{target}#{anchor} is linked; it has no such heading"
            )


@pytest.mark.parametrize("document", **PARAMETERS)
def test_paths_exist(document):
    gone = sorted({span for span in paths(prose(document)) if not exists(span, document)})
    assert not gone, f"{document.relative_to(ROOT)} names what is not there: {', '.join(gone)}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`planning/search/`", ["planning/search/"]),
        ("`worker/pipe.py` and `pipe.py`", ["worker/pipe.py", "pipe.py"]),
        ("`profiles/homes`", ["profiles/homes"]),
        (
            "`100 Mbit/s`, `MB/s`, `plan.toml`, `run(x)`, `/sys/class`, `potluck-demo/`, "
            "`RUN/STEP/`",
            [],
        ),
    ],
)
def test_a_path_is_told_from_other_words(text, found):
    assert list(paths(text)) == found


def test_a_lost_path_is_noticed():
    this_file = Path(__file__)
    assert exists("planning/planner.py", this_file)
    assert exists("profiles/devices/NAME.toml", this_file)
    assert not exists("planning/nowhere.py", this_file)
    assert not exists("nowhere.py", this_file)


def test_a_lost_heading_is_noticed():
    assert links("[a](b.md#c) [d](https://e.f/#g)") == [("b.md", "c")]
    assert anchors("# What is `pure`?\n") == {"what-is-pure"}
