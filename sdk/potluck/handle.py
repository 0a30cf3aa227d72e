"""A Handle: work that goes on in the background, shows its progress, and turns into its result
where it is used.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from potluck import display_hooks
from potluck.errors import UserError
from potluck.optional_packages import missing

T = TypeVar("T")
R = TypeVar("R")

# how long Ctrl-C waits for the work to reach a point where it can stop without harm
CANCEL_GRACE_S = 30.0
LOOK_S = 0.1  # how often work that waits for its turn looks whether it was cancelled

_working = threading.local()  # `handle`: whose work this thread does; `quiet`: nothing is shown
_chaining = threading.Lock()  # held to say who waits for whom, and to look whether that is a ring


class Task:
    """What the work itself sees of its handle: where to report progress, and whether it should
    stop.
    """

    def __init__(self) -> None:
        self.progress: tuple[float, str] = (0.0, "")
        self.cancelled = False
        self._pending: Future[Any] | None = None
        self._listeners: list[Callable[[float, str], None]] = []
        self._lock = threading.Lock()

    def update(self, done_frac: float, text: str = "") -> None:
        """Say how far the work is; does nothing else, so it may be called often."""
        self.progress = (min(max(done_frac, 0.0), 1.0), text)
        for listener in tuple(self._listeners):
            with suppress(Exception):  # a broken display must never stop the work
                listener(*self.progress)

    def check(self) -> None:
        """Stop here if the user asked for it: a point where nothing is half done.

        Raises
        ------
        CancelledError
            If the handle was cancelled.
        """
        if self.cancelled:
            raise CancelledError

    def wait(self, future: "Future[R]") -> R:
        """Wait for a future in a way that `cancel` can interrupt."""
        with self._lock:
            self.check()
            self._pending = future
        try:
            return future.result()
        finally:
            self._pending = None

    def listen(self, listener: Callable[[float, str], None]) -> None:
        """Call `listener(done_frac, text)` at every update, from the work's own thread."""
        self._listeners.append(listener)

    def cancel(self) -> None:
        """Ask the work to stop at its next point."""
        with self._lock:
            self.cancelled = True
            pending = self._pending
        if pending is not None:
            pending.cancel()


def in_turn(lock: threading.Lock, work: Callable[[Task], T]) -> Callable[[Task], T]:
    """That work, once nobody else has the lock. Waiting for it can be cancelled.

    Parameters
    ----------
    lock
        Of all who must not work at the same time.
    work
        Called with a `Task`.
    """

    def waiting(task: Task) -> T:
        while not lock.acquire(timeout=LOOK_S):
            task.check()
        try:
            return work(task)
        finally:
            lock.release()

    return waiting


class Handle(Generic[T]):
    """Background work of type `T`. Reading an attribute, calling, indexing or iterating it waits
    for the result.

    Parameters
    ----------
    work
        Called with a `Task` in a background thread; what it returns is the result.
    title
        What is being done, for displays: "profiling cnn".
    after
        Other work that must have ended before this work begins; well or not.
    """

    def __init__(
        self,
        work: Callable[[Task], T],
        title: str = "working",
        *,
        after: "Handle[Any] | None" = None,
    ) -> None:
        self._title = title
        self._awaited = after  # whose end the work waits for now
        self._task = Task()
        self._future: Future[T] = Future()
        self._seen = False
        self._thread = threading.Thread(
            target=self._carry_out, args=(work,), name=f"potluck {title}", daemon=True
        )
        _show(self)
        self._thread.start()

    def _carry_out(self, work: Callable[[Task], T]) -> None:
        self._future.set_running_or_notify_cancel()
        _working.handle = self
        try:
            self._wait_for_turn()
            result = work(self._task)
        except CancelledError:
            self._future.set_exception(CancelledError(f"{self._title} was cancelled."))
        except ImportError as error:
            self._future.set_exception(missing(error) or error)
        except BaseException as error:  # it is raised again where the handle is used
            self._future.set_exception(error)
        else:
            self._task.update(1.0, self._task.progress[1])
            self._future.set_result(result)

    def _wait_for_turn(self) -> None:
        earlier = self._awaited
        try:
            while earlier is not None and not wait([earlier._future], LOOK_S).done:
                self._task.check()
        finally:
            self._awaited = None

    @property
    def title(self) -> str:
        """What is being done."""
        return self._title

    @property
    def progress(self) -> tuple[float, str]:
        """(fraction done, what is going on)."""
        return self._task.progress

    @property
    def done(self) -> bool:
        """Whether the work has ended, well or not."""
        return self._future.done()

    def listen(self, listener: Callable[[float, str], None]) -> None:
        """Call `listener(done_frac, text)` at every update, from the background thread."""
        self._task.listen(listener)

    def on_done(self, callback: "Callable[[Handle[T]], None]") -> None:
        """Call `callback(handle)` once the work has ended."""
        self._future.add_done_callback(lambda _future: callback(self))

    def cancel(self) -> None:
        """Ask the work to stop where nothing is half done.

        `wait()` then raises `CancelledError`.
        """
        self._task.cancel()

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the result.

        Raises
        ------
        TimeoutError
            After `timeout_s` seconds; the work goes on.
        CancelledError
            If it was cancelled; otherwise whatever the work raised.
        UserError
            The work cannot end before this call does: it is made by the work itself.
        """
        try:
            with self._waited_for():
                return self._future.result(timeout_s)
        except KeyboardInterrupt:
            self.cancel()
            self._thread.join(CANCEL_GRACE_S)
            raise
        finally:
            self._seen = self._future.done()

    @property
    def seen(self) -> bool:
        """Whether somebody has waited for its end, and so knows what it raised."""
        return self._seen

    @property
    def waits_for_caller(self) -> bool:
        """Whether the work is done by this thread, or waits for work that is: it must not wait for
        itself.
        """
        mine: Handle[Any] | None = getattr(_working, "handle", None)
        link: Handle[Any] | None = self
        while link is not None and not link.done and link is not mine:
            link = link._awaited
        return link is not None and not link.done

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """While the caller waits for it, whoever waits for the caller's work is seen to wait for
        it, too.
        """
        mine: Handle[Any] | None = getattr(_working, "handle", None)
        if mine is None or self.done:
            yield
            return
        with _chaining:
            if self.waits_for_caller:
                raise UserError(
                    f"{self._title} would wait for itself: it cannot end before what waits for "
                    "it here.",
                    next_step="Do not wait inside on_step, a loader or other code that the work "
                    "calls: keep the handle, and call wait() after the work has ended.",
                )
            mine._awaited = self
        try:
            yield
        finally:
            mine._awaited = None

    # --- resolving on use -------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        # Jupyter and copy probe for many private names: they must not block
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.wait(), name)

    def __dir__(self) -> list[str]:  # what a notebook completes after a dot
        own = super().__dir__()
        return (
            [*own] if not self.done or self._failed else sorted({*own, *dir(self._future.result())})
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the result answers when it is called."""
        return self.wait()(*args, **kwargs)  # type: ignore[operator]

    def __getitem__(self, key: Any) -> Any:
        return self.wait()[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wait())  # type: ignore[call-overload,no-any-return]

    def __len__(self) -> int:
        return len(self.wait())  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if not self.done:
            done_frac, text = self.progress
            return f"<{self._title}: {done_frac:.0%}{' ' + text if text else ''}>"
        if self._future.cancelled() or isinstance(self._future.exception(), CancelledError):
            return f"<{self._title}: cancelled>"
        error = self._future.exception()
        return (
            f"<{self._title}: {type(error).__name__}: {error}>"
            if error
            else repr(self._future.result())
        )

    def _repr_html_(self) -> str | None:
        if self.done and not self._failed:
            render = getattr(self._future.result(), "_repr_html_", None)
            return render() if render else None
        return (
            display_hooks.words(repr(self))
            if self.done
            else display_hooks.progress_bar(self._title, *self.progress)
        )

    def _ipython_display_(self) -> None:
        display_hooks.show_in_cell(self)

    @property
    def _failed(self) -> bool:
        return self._future.cancelled() or self._future.exception() is not None


def resolved(value: "Handle[T] | T") -> T:
    """The value itself, waited for if it is still a handle."""
    return value.wait() if isinstance(value, Handle) else value


_attach: Callable[[Handle[Any]], None] | None = display_hooks.watch


def show_with(attach: Callable[[Handle[Any]], None] | None) -> None:
    """Let `attach(handle)` show every handle made from now on; None shows nothing."""
    global _attach
    _attach = attach


@contextmanager
def quietly() -> Iterator[None]:
    """Handles that this thread makes inside show nothing: whoever made them tells of them."""
    _working.quiet = True
    try:
        yield
    finally:
        _working.quiet = False


def _show(handle: Handle[Any]) -> None:
    if _attach is not None and not getattr(_working, "quiet", False):
        with suppress(Exception):  # a broken display must never stop the work
            _attach(handle)
