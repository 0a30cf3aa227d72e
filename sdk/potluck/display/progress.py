"""Shows the progress of a Handle while it works: a bar in terminals, a widget in notebooks, nothing elsewhere.

rich and ipywidgets are imported only where they are used; where one is missing, nothing is shown.
"""

import sys
import threading
from contextlib import suppress
from typing import Any, Protocol

from potluck.display.text import clean


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
        elif sys.stderr is not None and sys.stderr.isatty():
            _terminal().follow(handle)


def show(handle: Any) -> None:
    """Display a handle in the cell at hand; once its work has ended, the result takes the place of its progress."""
    from IPython.display import display

    place = display(_mime(handle), raw=True, display_id=True)  # type: ignore[no-untyped-call]
    if not handle.done:
        handle.on_done(lambda _handle: place.update(_mime(handle), raw=True))


def _mime(handle: Any) -> dict[str, str]:
    shown = {"text/plain": repr(handle), "text/html": handle._repr_html_()}
    return {kind: content for kind, content in shown.items() if content is not None}


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel (asked without importing IPython: a kernel has done so)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class Terminal:
    """One live region of bars on stderr for all handles under way; it closes itself with the last of them."""

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
            task = bars.add_task(clean(handle.title), total=1.0, words="")
        handle.listen(lambda frac, words="": bars.update(task, completed=frac, words=clean(words)))
        handle.on_done(lambda _handle: self._ended(task))

    def _ended(self, task: Any) -> None:
        with self._lock:
            self._bars.stop_task(task)
            self._under_way -= 1
            if self._under_way == 0:
                self._bars.stop()
                self._bars = None

    def _new_bars(self) -> Any:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        # markup off: words may hold brackets that came from another machine
        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False, style="dim"),
            console=self._console,
        )


_shared: Terminal | None = None


def _terminal() -> Terminal:
    global _shared
    if _shared is None:
        _shared = Terminal()
    return _shared


class _Widget:
    """A bar in the output of the cell that made the handle; updated from the handle's own thread."""

    def __init__(self, handle: Working) -> None:
        import ipywidgets
        from IPython.display import display

        self._bar = ipywidgets.FloatProgress(min=0.0, max=1.0, layout=ipywidgets.Layout(width="260px"))
        self._words = ipywidgets.Label()
        title = ipywidgets.Label(clean(handle.title), layout=ipywidgets.Layout(min_width="160px"))
        handle.listen(self._update)
        handle.on_done(self._ended)
        display(ipywidgets.HBox([title, self._bar, self._words]))  # type: ignore[no-untyped-call]

    def _update(self, done_frac: float, words: str = "") -> None:
        self._bar.value = done_frac
        self._words.value = clean(words)

    def _ended(self, handle: Working) -> None:
        self._bar.bar_style = "danger" if _failed(handle) else "success"


def _failed(handle: Working) -> bool:
    """Whether work that has ended was cancelled or raised; nothing waits here."""
    try:
        handle.wait(0)
    except BaseException:  # whatever it was, it is raised again where the handle is used
        return True
    return False
