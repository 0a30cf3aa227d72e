"""How values show themselves, and what a plan says of itself: asked for here, answered by what
stands above.

Values stand below the code that draws them. This file alone looks up, and only when somebody looks
at a value.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.planning.explain import Explanation
    from potluck.records import Plan


class Shown:
    """A value that notebooks show as HTML: see `display/views.py`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from potluck.display import views

        return views.as_html(self)


class Tabular(Shown):
    """A value whose text is a table, too."""

    __slots__ = ()

    def __repr__(self) -> str:
        from potluck.display import views

        return views.as_text(self)


class Pictured(Tabular):
    """A value with a picture that can be saved."""

    __slots__ = ()

    def save(self, path: str | Path) -> Path:
        """Write the picture as a file: .png, .svg, or .html with the table."""
        from potluck.display import views

        return views.save(self, path)


def text(value: Any) -> str:
    """A value as text."""
    from potluck.display import views

    return views.as_text(value)


def words(sentence: str) -> str:
    """A sentence as HTML."""
    from potluck.display import markup

    return markup.words(sentence)


def progress_bar(title: str, done_frac: float, sentence: str) -> str:
    """How far some work is, as HTML.

    Parameters
    ----------
    title
        What the work is.
    done_frac
        How much of it is done, 0 to 1.
    sentence
        What it said last.
    """
    from potluck.display import html

    return html.progress(title, done_frac, sentence)


def watch(handle: Any) -> None:
    """Show how far a `Handle` is while it works, in notebooks and terminals; nothing elsewhere."""
    from potluck.display import progress

    progress.attach(handle)


def show_in_cell(handle: Any) -> None:
    """Show a `Handle` as the last line of a cell: first how far it is, in the end its result."""
    from potluck.display import progress

    progress.show(handle)


def live(value: Any) -> Callable[[], None]:
    """Show a value in this cell; calling what this returns draws it anew, but not too often."""
    from potluck.display import progress

    return progress.live(value)


def cockpit(home: Any, run: Any, plans: "tuple[Plan, ...]") -> Any:
    """A home live, in a notebook.

    Parameters
    ----------
    home
        The home.
    run
        A run of it, if one is shown.
    plans
        Plans to choose among.
    """
    from potluck.display import cockpit

    return cockpit.shown(home, run, plans)


def explore(profile: Any, workload: Any, plans: "tuple[Plan, ...]") -> Any:
    """The plans of an imagined home live, in a notebook.

    Parameters
    ----------
    profile
        Of the devices and a model.
    workload
        What is planned.
    plans
        Plans to choose among.
    """
    from potluck.display import cockpit

    return cockpit.explored(profile, workload, plans)


def report(run: Any, path: str | Path) -> Path:
    """A page about a run, as a file."""
    from potluck.display import report

    return report.save(run, path)


def window(home: Any, folder: Path | None, may_act: bool, before: Any) -> Any:
    """A home's page on loopback, which other processes of its user find by its folder: the one that
    there is, or another in its place.

    Parameters
    ----------
    home
        The home.
    folder
        Where others find it; None: they do not.
    may_act
        Whether they may act, too.
    before
        The page that there was, if any.
    """
    from potluck.display import cockpit

    return cockpit.seen_through(home, folder, may_act, before)


def gateway_page(home: Any) -> Any:
    """A home's page for its HTTP entrance.

    Parameters
    ----------
    home
        The home.
    """
    from potluck.display import cockpit

    return cockpit.at_gateway(home)


def look(folder: Path) -> Any:
    """A home that another process has open, live, in a notebook: only to look at.

    Parameters
    ----------
    folder
        Of its keys.
    """
    from potluck.display import cockpit

    return cockpit.looked_at(folder)


def explanation(plan: "Plan") -> "Explanation":
    """Why a plan is as it is."""
    from potluck.planning.explain import explain

    return explain(plan)


def save_plan(plan: "Plan", path: str | Path) -> None:
    """Write a plan as text to read, edit and load again."""
    from potluck.planning.api import save_plan as save

    save(plan, path)
