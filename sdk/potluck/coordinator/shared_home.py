"""What a home has for other processes of its owner: they look at it, and take it over on request.

The rule: nothing is lost. Whoever has the home is told. Each training ends between two steps and is
saved beside the keys, weights, optimizer and place in its data; then the home is closed, and the
other process has it. What cannot be saved stays, and so does the home.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from potluck import display_hooks
from potluck.coordinator.home_requests import (
    DONE,
    LOOK_S,
    REFUSED,
    SHOW,
    TAKE_OVER,
    UNDER_WAY,
    HolderAnswer,
    HomeRequest,
    answer,
    ask,
    question,
)
from potluck.discover.key_claim import holder_of
from potluck.discover.keyring import state_dir
from potluck.errors import EmptyHome, HomeError, PotluckError, UserError
from potluck.handle import Handle, Task
from potluck.serve.runtime.serving_home import ServingHome

if TYPE_CHECKING:
    from potluck.discover.keyring import Keyring
    from potluck.run.run import Run

T = TypeVar("T", bound="SharedHome")

STOP = "stop"
FINISH, KEEP = "finish", "keep"
FOLDER = "taken-over"  # beside the keys
STEP_S = 120.0  # that a step may take, and a profile to its next point
OPEN_S = 3.0
CLOSE_S = 30.0  # that a home takes to close
_LOG = logging.getLogger("potluck.home")


class SharedHome(ServingHome):
    """The part of a `Home` that other processes see and ask for."""

    _ring: "Keyring | None"
    _window: Any = None  # the page for other processes, where it was asked for
    _given: str = ""  # to whom, once it was taken over
    _when_asked: str = STOP
    taken_over: tuple[Path, ...] = ()  # files of the trainings that ended for this home

    @property
    def given(self) -> str:
        """Who has asked for this home, or has taken it over, and what was saved; empty: nobody."""
        return self._given

    @property
    def when_asked(self) -> str:
        """What becomes of the work under way when another process asks for this home: "stop" (the
        default): trainings end between two steps and are saved; "finish": it waits until all is
        done; "keep": it is refused.
        """
        return self._when_asked

    @when_asked.setter
    def when_asked(self, rule: str) -> None:
        """Set what becomes of it.

        Raises
        ------
        UserError
            There is no such rule.
        """
        if rule not in (STOP, FINISH, KEEP):
            raise UserError(
                f"a home that is asked for does one of {STOP!r}, {FINISH!r}, {KEEP!r}, "
                f"got {rule!r}."
            )
        self._when_asked = rule

    def window(self, *, may_act: bool = False) -> str:
        """The address of this home's page for browsers of this machine: what `potluck watch`,
        `potluck top` and `Home.look` of other processes look through, while this one has the home.

        Parameters
        ----------
        may_act
            Whether the page may switch plans and pair; else it is only to look at.
        """
        self._window = display_hooks.window(self, self._folder, may_act, self._window)
        return str(self._window.url)

    @staticmethod
    def look(*, state: str | Path | None = None) -> Any:
        """The cockpit of a home that another process of yours has open: to look at only.

        Parameters
        ----------
        state
            As for `Home`.

        Raises
        ------
        HomeError
            Nobody has it open, or whoever has does not answer.
        UserError
            anywidget is not installed; `potluck watch` and `potluck top` need none.
        """
        return display_hooks.look(Path(state) if state is not None else state_dir())

    @classmethod
    def take_over(
        cls: type[T],
        within_s: float = 60.0,
        *,
        state: str | Path | None = None,
        timeout_s: float = OPEN_S,
    ) -> T:
        """This home, which another process of yours may have open: that is asked for it, told, and
        closes it. Its trainings end between two steps and are saved: `home.taken_over` has the
        files, from which `home.deploy(plan, model, resume=file)` and `run.fit(data, resume=True)`
        go on. What the other process wants instead, its `home.when_asked` says.

        Parameters
        ----------
        within_s
            The other process has so long; then it keeps the home.
        state
            As for `Home`.
        timeout_s
            Seconds to listen for devices, as for `Home.discover`.

        Raises
        ------
        HomeError
            It refuses, does not answer, or needs longer; or a coordinator has the home, which
            trains what was handed over.
        """
        folder = Path(state) if state is not None else state_dir()
        opened: Any = cls

        def once() -> T:
            try:
                home: T = opened.discover(timeout_s, state=state)
            except EmptyHome:
                home = opened(state=state)
            return home

        def work(task: Task) -> T:
            try:
                return once()
            except HomeError as error:
                holder = error.facts.get("holder")
                if not isinstance(holder, int) or error.facts.get("is_coordinator"):
                    raise
                outcome = _outcome_of_asking(folder, within_s, task, holder)
            if isinstance(outcome, HolderAnswer):
                _wait_until_free(folder)
            try:
                home = once()
            except HomeError as error:
                raise (outcome if isinstance(outcome, HomeError) else error) from error
            if isinstance(outcome, HolderAnswer):
                home.taken_over = tuple(map(Path, outcome.saved))
            return home

        return Handle(work, "taking this home over").wait()

    # --- being asked ------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path | None:
        """Where the keys are; a lab has none."""
        return self._ring.directory if self._ring is not None else None

    def _begin_to_hear(self) -> None:
        """From now on other processes may ask for it."""
        if self._folder is not None:
            threading.Thread(
                target=_hear,
                args=(self._folder, weakref.ref(self)),
                name="potluck home requests",
                daemon=True,
            ).start()

    def respond(self, request: HomeRequest) -> None:
        """Do what another process of this home's owner asks for, and answer it.

        Parameters
        ----------
        request
            By a file beside the keys.
        """
        folder = self._folder
        assert folder is not None  # else nobody can ask

        def say(words: str, state: str = UNDER_WAY, saved: tuple[str, ...] = ()) -> None:
            answer(
                folder, HolderAnswer(number=request.number, state=state, words=words, saved=saved)
            )

        if request.what == SHOW:
            say(self.window() if self._window is None else str(self._window.url), DONE)
        elif self.when_asked == KEEP:
            say("its owner has set home.when_asked to 'keep'.", REFUSED)
        else:
            self._given = f"process {request.process} asks for this home"
            _LOG.warning("Process %d asks for this home.", request.process)
            say("it was told, and looks for a safe point.")
            self._give(request, folder, say)

    def _give(self, request: HomeRequest, folder: Path, say: Callable[..., None]) -> None:
        home: Any = self
        saved: tuple[Path, ...] = ()
        try:
            if self.when_asked == FINISH:
                if not self._finished(request, folder, say):
                    return
            else:
                saved = self._settled(folder, say)
        except (PotluckError, TimeoutError) as error:
            self._given = ""
            _LOG.warning("It stays here: %s", error)
            say(f"{error} Nothing is lost, and what has not ended goes on there.", REFUSED)
            return
        kept = f"; saved: {', '.join(map(str, saved))}" if saved else ""
        self._given = f"process {request.process} took it over{kept}"
        _LOG.warning("This home is closed: %s.", self._given)
        # before it closes: its program may end then
        say("it is yours.", DONE, tuple(map(str, saved)))
        home.close()

    def _finished(self, request: HomeRequest, folder: Path, say: Callable[..., None]) -> bool:
        """Whether all has ended while the other process still waits."""
        last_words = ""
        while not self._closed and self._is_at_work_now:
            titles = [work.title for work in self._work if not work.done]
            fits = [f"{run.plan.model}, step {run.step}" for run in self._training]
            words = f"it ends first: {', '.join([*titles, *fits]) or 'its services'}."
            if words != last_words:
                last_words = words
                say(words)
            time.sleep(LOOK_S)
            if question(folder) != request:
                self._given = ""
                _LOG.warning("Process %d asks for this home no more.", request.process)
                return False
        return True

    @property
    def _training(self) -> "tuple[Run, ...]":
        """Runs with a fit under way."""
        return tuple(run for run in self._runs if run.is_open and run.glance.is_training)

    @property
    def _is_at_work_now(self) -> bool:
        return (
            bool(self._training) or bool(self.services) or not all(work.done for work in self._work)
        )

    def _settled(self, folder: Path, say: Callable[..., None]) -> tuple[Path, ...]:
        """All work at a safe point, trainings in files."""
        for work in [work for work in self._work if not work.done]:
            say(f"it stops {work.title}.")
            work.cancel()
            with suppress(PotluckError, CancelledError):
                work.wait(STEP_S)
        saved = []
        for run in [run for run in self._runs if run.is_open and run.plan.training]:
            say(f"the training of {run.plan.model} ends after step {run.step + 1}, and is saved.")
            try:
                run.stop(STEP_S)
            except TimeoutError:
                raise HomeError(
                    f"the training of {run.plan.model} has not come to the end of a step "
                    f"within {STEP_S:.0f} s."
                ) from None
            except PotluckError as error:  # a fit that fails is told to whoever waits for it
                _LOG.warning("A fit has failed: %s", error)
            saved.append(_save(run, folder / FOLDER))
        return tuple(saved)


def _save(run: "Run", folder: Path) -> Path:
    """All of a run in a file that is not there yet, and its plan beside it."""
    stem = "".join(c if c.isalnum() else "-" for c in run.plan.model.lower()).strip("-")[:40]
    names = (folder / f"{stem or 'run'}-{n}.safetensors" for n in range(1, 10_000))
    path = next(path for path in names if not path.exists())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    run.save(path)
    display_hooks.save_plan(run.plan, path.with_suffix(".toml"))
    return path


def _outcome_of_asking(
    folder: Path, within_s: float, task: Task, holder: int
) -> HolderAnswer | HomeError:
    """What the process that has the home says, or why it says nothing."""
    begun_s = time.monotonic()

    def say(words: str) -> None:
        task.update(min(0.95, (time.monotonic() - begun_s) / within_s), words)

    try:
        return ask(folder, TAKE_OVER, within_s=within_s, holder=holder, say=say)
    except HomeError as error:
        return error


def _wait_until_free(folder: Path) -> None:
    """Until whoever gives it up has closed it: its services and sessions end first."""
    ends_s = time.monotonic() + CLOSE_S
    while holder_of(folder) is not None and time.monotonic() < ends_s:
        time.sleep(LOOK_S / 5)


def _hear(folder: Path, home: "weakref.ref[SharedHome]") -> None:
    """Look for questions until the home is closed or forgotten."""
    heard = ""
    while (its := home()) is not None and not its._closed:
        request = question(folder)
        if request is not None and request.number != heard:
            heard = request.number
            try:
                its.respond(request)
            except Exception as error:  # whoever asked has to hear that it did not work
                _LOG.exception("A question of process %d was not answered.", request.process)
                with suppress(PotluckError):
                    answer(folder, HolderAnswer(number=heard, state=REFUSED, words=str(error)))
        del its
        time.sleep(LOOK_S)
