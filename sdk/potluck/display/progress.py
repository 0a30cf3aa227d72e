"""Shows the progress of a Handle while it works: a bar in terminals, a widget in notebooks, a line
elsewhere.

rich and ipywidgets are imported only where they are used; where one is missing, nothing is shown.
"""

import functools
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from potluck.sanitized_text import harmless

REDRAW_S = 0.2
LONG_S = 2.0  # what takes longer is told in a line where there is no terminal, such as in a log


class Working(Protocol):
    """What is needed of a `Handle`."""

    @property
    def title(self) -> str:
        """What is being done."""

    def listen(self, listener: Any) -> None:
        """Call `listener(done_frac, text)` at every update."""

    def on_done(self, callback: Any) -> None:
        """Call `callback(handle)` once it has ended."""

    def wait(self, timeout_s: float | None = None) -> Any:
        """The result, or what the work raised."""


def attach(handle: Working) -> None:
    """Show how far `handle` is, in whatever this process writes to."""
    with suppress(ImportError):  # an optional package is missing: work on in silence
        if in_notebook():
            _Widget(handle)
            _followed[handle] = current_cell()
        elif sys.stderr is not None and sys.stderr.isatty():
            terminal().follow(handle)
        elif sys.stderr is not None:
            handle.listen(_ProgressLine(handle.title))


def show(handle: Any) -> None:
    """Display a handle in the cell at hand.

    Once its work has ended, the result takes the place of its progress.

    Where a bar above, in the same cell, follows the work already, nothing stands here until then.
    """
    from IPython.display import display

    followed = not handle.done and _followed.get(handle) == current_cell()
    place = display({"text/plain": ""} if followed else _mime(handle), raw=True, display_id=True)  # type: ignore[no-untyped-call]
    if handle.done:
        return
    if not followed:
        handle.listen(_Paced(lambda: place.update(_mime(handle), raw=True)))
    handle.on_done(lambda _handle: place.update(_mime(handle), raw=True))


def live(value: Any) -> Callable[[], None]:
    """Display a value in the cell at hand; the function that this returns draws it anew there.

    Where there is no notebook, nothing is drawn.
    """
    if not in_notebook():
        return lambda: None
    from IPython.display import display

    place = display(_mime(value), raw=True, display_id=True)  # type: ignore[no-untyped-call]
    return _Paced(lambda: place.update(_mime(value), raw=True))


def _mime(handle: Any) -> dict[str, str]:
    shown = {"text/plain": repr(handle), "text/html": handle._repr_html_()}
    return {kind: content for kind, content in shown.items() if content is not None}


class _Paced:
    """Calls `draw()` for updates, but not for each of a burst: a browser has to follow."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw, self._next_s = draw, 0.0

    def __call__(self, _done_frac: float = 0.0, _words: str = "") -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + REDRAW_S
            self._draw()


class _ProgressLine:
    """Writes one line, when the work has lasted a while and is not done."""

    def __init__(self, title: str) -> None:
        self._title, self._due_s = title, time.monotonic() + LONG_S

    def __call__(self, done_frac: float, words: str = "") -> None:
        if done_frac < 1.0 and time.monotonic() >= self._due_s:
            self._due_s = math.inf
            sys.stderr.write(harmless(f"potluck: {self._title} ... {words}".rstrip()) + "\n")
            sys.stderr.flush()


# handles with a bar: in which cell
_followed: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def current_cell() -> int:
    """The number of the cell that runs now; 0 outside notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return int(getattr(shell, "execution_count", 0))


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel (asked without importing IPython: a kernel has done so)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class Terminal:
    """One live region of bars on stderr for all handles under way.

    It closes itself with the last of them.
    """

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True)
        self._lock = threading.RLock()
        self._bars: Any = None
        self._under_way = 0

    def follow(self, handle: Working) -> None:
        """Show this handle until it ends."""
        with self._lock:
            if self._bars is None:
                self._bars = self._new_bars()
                self._bars.start()
            bars = self._bars
            self._under_way += 1
            task = bars.add_task(harmless(handle.title), total=1.0, words="")
        handle.listen(
            lambda frac, words="": bars.update(task, completed=frac, words=harmless(words))
        )
        handle.on_done(lambda _handle: self._ended(task))

    def _ended(self, task: Any) -> None:
        with self._lock:
            self._bars.stop_task(task)
            self._under_way -= 1
            if self._under_way == 0:
                self._bars.stop()
                self._bars = None

    def _new_bars(self) -> Any:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        # markup off: words may hold brackets that came from another machine
        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False, style="dim"),
            console=self._console,
        )


@functools.cache
def terminal() -> Terminal:
    """The one of this process."""
    return Terminal()


class _Widget:
    """A bar in the output of the cell that made the handle.

    Updated from the handle's own thread.
    """

    def __init__(self, handle: Working) -> None:
        import ipywidgets
        from IPython.display import display

        self._bar = ipywidgets.FloatProgress(
            min=0.0, max=1.0, layout=ipywidgets.Layout(width="260px")
        )
        self._words = ipywidgets.Label()
        title = ipywidgets.Label(
            harmless(handle.title), layout=ipywidgets.Layout(min_width="160px")
        )
        handle.listen(self._update)
        handle.on_done(self._ended)
        display(ipywidgets.HBox([title, self._bar, self._words]))  # type: ignore[no-untyped-call]

    def _update(self, done_frac: float, words: str = "") -> None:
        self._bar.value = done_frac
        self._words.value = harmless(words)

    def _ended(self, handle: Working) -> None:
        self._bar.bar_style = "danger" if _failed(handle) else "success"


def _failed(handle: Working) -> bool:
    """Whether work that has ended was cancelled or raised; nothing waits here."""
    try:
        handle.wait(0)
    except BaseException:  # whatever it was, it is raised again where the handle is used
        return True
    return False
