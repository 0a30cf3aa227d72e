"""The cockpit: a home, its run and the choices, live.

`machine.py` is what it does, pure; `observer.py` looks and acts; `widget.py`, `page.py` and
`terminal.py` show it; `page.js` is what browsers run.
"""

import weakref
from typing import TYPE_CHECKING

from potluck.optional_packages import needed

if TYPE_CHECKING:
    from pathlib import Path

    from potluck.display.cockpit.looking import Looking
    from potluck.display.cockpit.observer import HomeObserver
    from potluck.display.cockpit.widget import Cockpit
    from potluck.display.cockpit.window import Window
    from potluck.home import Home
    from potluck.records import Plan
    from potluck.run.run import Run

# by home: the cockpits there are, by the number of their run (-1: the newest)
_open: "weakref.WeakKeyDictionary[Home, dict[int, Cockpit]]" = weakref.WeakKeyDictionary()


def shown(home: "Home", run: "Run | None", plans: "tuple[Plan, ...]") -> "Cockpit":
    """The cockpit of this home and run: the one that there is, or a new one."""
    from potluck.errors import UserError
    from potluck.records import Plan

    if not all(isinstance(plan, Plan) for plan in plans):
        raise UserError("plans are potluck.Plan records.", next_step="home.cockpit(plans=plans)")
    with needed():
        from potluck.display.cockpit.widget import Cockpit
    its = _open.setdefault(home, {})
    number = run.number if run is not None else -1
    found = its.get(number)
    if found is None or found.watching.is_closed:
        found = its[number] = Cockpit(watch(home, run, plans))
    elif plans:
        found.watching.give(plans)
    return found


def seen_through(
    home: "Home", folder: "Path | None", may_act: bool, before: "Window | None"
) -> "Window":
    """The window of a home: the one before, or another in its place."""
    from potluck.display.cockpit.window import Window

    if before is not None and before.may_act == may_act:
        return before
    if before is not None:
        before.close()
    return Window(home, folder, may_act)


def looked_at(folder: "Path") -> "Looking":
    """The cockpit of a home that another process has open."""
    from potluck.display.cockpit import window

    url, process = window.through(folder)
    with needed():
        from potluck.display.cockpit.looking import Looking
    return Looking(url, process)


def watch(home: "Home", run: "Run | None" = None, plans: "tuple[Plan, ...]" = ()) -> "HomeObserver":
    """What looks at a home for pages and terminals."""
    from potluck.display.cockpit.observer import HomeObserver

    return HomeObserver(home, run, plans)
