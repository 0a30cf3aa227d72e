"""The parts behind a home and a run, for tests that look at them or replace one.

What they are is in `sdk/ARCHITECTURE.md`; they may change with any version.
"""

from potluck.errors import HomeError
from potluck.home import Home
from potluck.lab.lab import Playground
from potluck.run.engine import RunEngine
from potluck.run.evaluation import Evaluation
from potluck.run.run import Run
from potluck.serve.runtime.serving import Serving
from potluck.sessions.link import SessionLink


def link_of(home: Home) -> SessionLink:
    """What a home asks its devices through."""
    return home._link


def lab_of(home: Home) -> Playground:
    """What the devices of a home on this machine are in.

    Parameters
    ----------
    home
        From `Home.local`, `Home.lab` or `memory_home`.

    Raises
    ------
    HomeError
        They are real ones.
    """
    if home._lab is None:
        raise HomeError("its devices are real ones.")
    return home._lab


def serving_of(home: Home) -> Serving:
    """What serves the services of a home."""
    return home._services()


def runs_of(home: Home) -> tuple[Run, ...]:
    """The runs of a home that somebody still holds."""
    return tuple(home._runs)


def evaluation_of(run: Run) -> Evaluation | None:
    """What answers the requests of a run that trains; None where nothing was asked since it went on
    or switched.
    """
    return run._evaluation


def drained(run: Run) -> None:
    """Wait until a run has moved off the devices that want to leave, or has given that up."""
    if run._drain is not None:
        run._drain.wait()


def engine_of(run: Run) -> RunEngine:
    """What carries out the steps of a run."""
    return run._engine
