"""Progress of handles: drawn in terminals, silent elsewhere, and never in the way of the work."""

import io
import sys

import pytest

from potluck.display import progress


class Work:
    """Stands in for a Handle: only its three members are used."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.listeners, self.callbacks = [], []

    def listen(self, listener):
        self.listeners.append(listener)

    def on_done(self, callback):
        self.callbacks.append(callback)

    def update(self, frac, words=""):
        for listener in self.listeners:
            listener(frac, words)

    def end(self):
        for callback in self.callbacks:
            callback(self)


@pytest.fixture
def console():
    rich = pytest.importorskip("rich.console")
    return rich.Console(file=io.StringIO(), force_terminal=True, width=100)


def test_a_terminal_shows_title_words_and_percent(console):
    work = Work("profiling cnn")
    progress.Terminal(console).follow(work)
    work.update(0.42, "layer [conv1]\x1b[2J")
    work.end()
    shown = console.file.getvalue()
    assert "profiling cnn" in shown
    assert "layer [conv1]�[2J" in shown
    assert "42%" in shown


def test_several_handles_share_one_region_that_closes_with_the_last(console):
    terminal = progress.Terminal(console)
    first, second = Work("first"), Work("second")
    terminal.follow(first)
    terminal.follow(second)
    first.end()
    second.update(0.5)
    assert console._live_stack
    second.end()
    assert not console._live_stack
    third = Work("third")
    terminal.follow(third)
    third.end()
    assert "third" in console.file.getvalue()


def test_nothing_is_shown_where_nobody_looks(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    work = Work("profiling")
    progress.attach(work)
    assert work.listeners == []
    assert sys.stderr.getvalue() == ""


def test_a_missing_rich_is_silence(monkeypatch):
    class Tty(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Tty())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(progress, "_shared", None)
    work = Work("profiling")
    progress.attach(work)
    assert work.listeners == []


def test_a_notebook_gets_a_widget_that_follows_the_work(monkeypatch):
    pytest.importorskip("ipywidgets")
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    work = Work("profiling")
    progress.attach(work)
    title, bar, words = shown[0].children
    work.update(0.25, "conv1")
    assert (title.value, bar.value, words.value) == ("profiling", 0.25, "conv1")
    work.end()
    assert bar.bar_style == "success"


def test_a_plain_python_is_no_notebook():
    assert not progress.in_notebook()
