"""`python sdk/docs/build.py OUT`: the guide and the API reference as HTML in the folder OUT,
without a network.

Pages are Markdown: those of `pages/`, and documents that live beside the code they describe. The
tutorial's code is run, and what it prints and draws is put in. The reference is made by pdoc from
the docstrings of `modules.txt`. Every warning is an error, and so is every link that leads nowhere.
"""

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from os.path import relpath
from pathlib import Path
from urllib.parse import unquote

import pdoc
import pdoc.render
import pdoc.render_helpers
from pdoc import extract

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")  # the target of a link into the repository
BETWEEN = "\x1e"  # record separator: printed between the outputs of two pieces of code


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the guide: `source` is a document below the root, `file` its place in the
    output.
    """

    title: str
    source: str
    file: str


PAGES = (
    Page("Start", "sdk/docs/pages/start.md", "index.html"),
    Page("Tutorial", "sdk/docs/pages/tutorial.md", "tutorial.html"),
    Page("Across the internet", "sdk/docs/pages/internet.md", "internet.html"),
    Page("How to", "sdk/docs/pages/how_to.md", "how_to.html"),
    Page("Protocol", "device_agent/PROTOCOL.md", "protocol.html"),
    Page("Security", "device_agent/SECURITY.md", "security.html"),
    Page("Architecture", "sdk/ARCHITECTURE.md", "architecture.html"),
    Page("Glossary", "sdk/GLOSSARY.md", "glossary.html"),
    Page("Benchmarks", "sdk/BENCHMARKS.md", "benchmarks.html"),
)


def modules() -> list[str]:
    """The modules of the reference, in reading order."""
    lines = (HERE / "modules.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def build(out: Path) -> None:
    """Write everything into a new folder `out`.

    Raises
    ------
    SystemExit
        A link leads nowhere, or the tutorial's code fails.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    pdoc.render.configure(
        docformat="numpy", template_directory=HERE / "templates", show_source=False
    )
    for page in PAGES:
        write_page(page, out)
    write_reference(out / "reference")
    if lost := lost_links(out):
        raise SystemExit("links that lead nowhere:\n  " + "\n  ".join(lost))


# --- the guide ------------------------------------------------------------------------------------


def write_page(page: Page, out: Path) -> None:
    """One page as HTML, with copies of what it links to and shows."""
    text = (ROOT / page.source).read_text(encoding="utf-8")
    if FENCE.search(text) and page.source.startswith("sdk/docs/"):
        text = with_results(text, out / "pictures")
    text = LINK.sub(lambda found: linked(page, found[1], out), text)
    body = pdoc.render_helpers.to_html(text)
    template = pdoc.render.env.get_template("page.html.jinja2")
    html = template.render(title=page.title, pages=PAGES, contents=body.toc_html or "", text=body)
    (out / page.file).write_text(html, encoding="utf-8")


def linked(page: Page, target: str, out: Path) -> str:
    """Where a link of a document leads in the output: to another page, or to a copy of the file."""
    if target.startswith("pictures/"):  # made by the tutorial
        return target
    path = ((ROOT / page.source).parent / target).resolve()
    source = path.relative_to(ROOT).as_posix()
    for other in PAGES:
        if other.source == source:
            return other.file
    if not path.is_file():
        return target  # `lost_links` names it
    copy = out / "files" / source
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)
    return relpath(copy, out)


def with_results(text: str, pictures: Path) -> str:
    """A page with what its code prints; what the code draws lies in the folder `pictures`."""
    pictures.mkdir(exist_ok=True)
    pieces = FENCE.findall(text)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "page.py"
        script.write_text(f"\nprint({BETWEEN!r}, flush=True)\n".join(pieces), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)], cwd=pictures, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"the code of a page fails:\n{done.stdout}{done.stderr}")
    printed = iter(done.stdout.split(BETWEEN))
    return FENCE.sub(lambda fence: fence[0] + shown(next(printed)), text)


def shown(printed: str) -> str:
    """What a piece of code printed, as a block of the page."""
    return f"\n```text\n{printed.strip()}\n```\n" if printed.strip() else ""


# --- the reference --------------------------------------------------------------------------------


def write_reference(out: Path) -> None:
    """The API reference, one page per module."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # a class that names itself: shown as text
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        documented = {name: loaded(name) for name in modules()}
        for name, module in documented.items():
            path = out / (name.replace(".", "/") + ".html")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pdoc.render.html_module(module, documented), encoding="utf-8")
        (out / "index.html").write_text(pdoc.render.html_index(documented), encoding="utf-8")
        # Node.js, where it is there, has no stack for an index of this size, and pdoc prints pages
        # about it. The index works as it is.
        with contextlib.redirect_stdout(io.StringIO()):
            index = pdoc.render.search_index(documented)
        (out / "search.js").write_text(index, encoding="utf-8")


def loaded(name: str) -> pdoc.doc.Module:
    """A module with all that it exports, also what it would import when first asked for."""
    module = extract.load_module(name)
    for exported in getattr(module, "__all__", ()):
        setattr(module, exported, getattr(module, exported))
    return pdoc.doc.Module(module)


# --- links ----------------------------------------------------------------------------------------


class Anchors(HTMLParser):
    """What a page links to, and the names that its places have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and the names of one tag."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.ids.add(value)


def lost_links(out: Path) -> list[str]:
    """Links between pages below `out` that lead nowhere, as `page: target`."""
    found = {
        path.resolve(): Anchors(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")
    }
    return [
        f"{path.relative_to(out.resolve())}: {link}"
        for path, page in sorted(found.items())
        for link in dict.fromkeys(page.links)
        if not re.match(r"[a-z]+:", link) and not leads_somewhere(path, link, found)
    ]


def leads_somewhere(path: Path, link: str, found: dict[Path, Anchors]) -> bool:
    """Whether a link of the page `path` has a target: a file, and the named place in it."""
    target, _, anchor = unquote(link).partition("#")
    aim = (path.parent / target).resolve() if target else path
    if not aim.exists():
        return False
    if anchor.startswith("_"):  # pdoc links a private base class, and does not show it
        return True
    return not anchor or aim not in found or anchor in found[aim].ids


def main(words: Iterable[str]) -> None:
    """Build into the folder that is named, or into build/docs."""
    out = Path(next(iter(words), ROOT / "build" / "docs"))
    build(out)
    print(out / "index.html")


if __name__ == "__main__":
    main(sys.argv[1:])
