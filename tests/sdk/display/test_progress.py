"""Progress of handles: drawn in terminals, silent elsewhere, and never in the way of the work."""

import io
import sys
import threading

import pytest
from tests.timeouts import TIMEOUT_S

from potluck.display import progress
from potluck.handle import Handle

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor, while bars are drawn and after


def work(title="profiling"):
    """A handle whose work goes on until its test lets it: (handle, task, let it end)."""
    started = threading.Event()
    let_go = threading.Event()
    tasks = []

    def carry_out(task):
        tasks.append(task)
        started.set()
        let_go.wait(TIMEOUT_S)
        if let_go.error:
            raise let_go.error
        return "result"

    let_go.error = None
    handle = Handle(carry_out, title)
    started.wait(TIMEOUT_S)
    return handle, tasks[0], let_go


def end(handle, let_go, error=None):
    """Let the work end, and wait until everybody has heard of it."""
    heard = threading.Event()
    handle.on_done(lambda _handle: heard.set())
    let_go.error = error
    let_go.set()
    assert heard.wait(TIMEOUT_S)


@pytest.fixture
def console():
    rich = pytest.importorskip("rich.console")
    return rich.Console(file=io.StringIO(), force_terminal=True, width=100)


def test_a_terminal_shows_title_words_and_percent(console):
    handle, task, let_go = work("profiling cnn")
    progress.Terminal(console).follow(handle)
    task.update(0.42, "layer [conv1]\x1b[2J")
    end(handle, let_go)
    shown = console.file.getvalue()
    assert "profiling cnn" in shown
    assert "layer [conv1]�[2J" in shown


def test_several_handles_share_one_region_that_closes_with_the_last(console):
    terminal = progress.Terminal(console)
    first, second = work("first"), work("second")
    terminal.follow(first[0])
    terminal.follow(second[0])
    end(first[0], first[2])
    assert console.file.getvalue().count(HIDDEN) == 1
    assert SHOWN not in console.file.getvalue()
    end(second[0], second[2], ValueError("a failure ends it too"))
    assert console.file.getvalue().count(HIDDEN) == 1
    assert SHOWN in console.file.getvalue()
    third = work("third")
    terminal.follow(third[0])
    end(third[0], third[2])
    assert "third" in console.file.getvalue()


@pytest.mark.parametrize(("long_s", "n_lines"), [(3600.0, 0), (0.0, 1)], ids=["soon done", "long"])
def test_without_a_terminal_one_line_is_written_of_what_takes_long(monkeypatch, long_s, n_lines):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress, "LONG_S", long_s)
    handle, task, let_go = work()  # it attaches itself
    task.update(0.5, "half")
    task.update(0.6, "more")
    end(handle, let_go)
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) == n_lines
    assert all(handle.title in line and "half" in line for line in lines)


def test_a_missing_rich_is_silence(monkeypatch):
    class Tty(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Tty())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    progress.terminal.cache_clear()
    handle, task, let_go = work()
    progress.attach(handle)
    task.update(0.5)
    end(handle, let_go)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(("error", "style"), [(None, "success"), (ValueError("no"), "danger")])
def test_a_notebook_gets_a_widget_that_follows_the_work(monkeypatch, error, style):
    pytest.importorskip("ipywidgets")
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    handle, task, let_go = work()
    progress.attach(handle)
    title, bar, words = shown[0].children
    task.update(0.25, "conv1")
    assert (title.value, bar.value, words.value) == ("profiling", 0.25, "conv1")
    end(handle, let_go, error)
    assert bar.bar_style == style


@pytest.mark.parametrize(("shown_in", "n_bars"), [(7, 1), (8, 2)])
def test_a_handle_at_the_end_of_its_cell_has_one_bar_and_elsewhere_one_that_moves(
    monkeypatch, shown_in, n_bars
):
    pytest.importorskip("ipywidgets")
    display = pytest.importorskip("IPython.display")
    cell = [7]
    bars = []
    places = []

    class Place:
        def __init__(self, content):
            self.contents = [content]
            places.append(self)

        def update(self, content, *, raw):
            self.contents.append(content)

    def shown(content, *, raw=False, display_id=False):
        return Place(content) if display_id else bars.append(content)

    monkeypatch.setattr(display, "display", shown)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "current_cell", lambda: cell[0])
    handle, task, let_go = work()  # attached as it is made
    cell[0] = shown_in
    progress.show(handle)
    task.update(0.5, "half")
    (place,) = places
    assert len(bars) + ("text/html" in place.contents[0]) == n_bars
    assert any("50 %" in content.get("text/html", "") for content in place.contents) == (
        n_bars == 2
    )
    end(handle, let_go)
    assert place.contents[-1]["text/plain"] == repr(handle)


def test_a_plain_python_is_no_notebook():
    assert not progress.in_notebook()
