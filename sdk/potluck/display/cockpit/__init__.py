"""The cockpit: a home, its run and the choices, live.

`machine.py` is what it does, pure; `observer.py` looks and acts, on a home (`observed_home.py`)
or on one that is imagined (`observed_plans.py`); `widget.py`, `page.py` and
`terminal.py` show it; `page.js` is what browsers run.
"""

import weakref
from typing import TYPE_CHECKING

from potluck.optional_packages import needed

if TYPE_CHECKING:
    from pathlib import Path

    from potluck.display.cockpit.gateway_page import GatewayPage
    from potluck.display.cockpit.observer import CockpitObserver
    from potluck.display.cockpit.remote_cockpit import RemoteCockpit
    from potluck.display.cockpit.widget import Cockpit
    from potluck.display.cockpit.window import Window
    from potluck.home import Home
    from potluck.profile.profiles import Profile
    from potluck.records import Inference, Plan, Training
    from potluck.run.run import Run

# by home: the cockpits there are, by the number of their run (-1: the newest)
_open: "weakref.WeakKeyDictionary[Home, dict[int, Cockpit]]" = weakref.WeakKeyDictionary()


def shown(home: "Home", run: "Run | None", plans: "tuple[Plan, ...]") -> "Cockpit":
    """The cockpit of this home and run: the one that there is, or a new one."""
    _check(plans, "home.cockpit(plans=plans)")
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


def explored(
    profile: "Profile", workload: "Training | Inference", plans: "tuple[Plan, ...]"
) -> "Cockpit":
    """The cockpit of a home that is only imagined."""
    from potluck.planning import make_plans

    _check(plans, "profile.cockpit(workload, plans=plans)")
    with needed():
        from potluck.display.cockpit.widget import Cockpit
    from potluck.display.cockpit.observed_plans import ObservedPlans
    from potluck.display.cockpit.observer import BUDGET_S, CockpitObserver

    best = (plans or make_plans(profile.problem(workload), budget_s=BUDGET_S))[0]
    return Cockpit(CockpitObserver(ObservedPlans(profile, workload, best), plans))


def _check(plans: "tuple[Plan, ...]", next_step: str) -> None:
    from potluck.errors import UserError
    from potluck.records import Plan

    if not all(isinstance(plan, Plan) for plan in plans):
        raise UserError("plans are potluck.Plan records.", next_step=next_step)


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


def at_gateway(home: "Home") -> "GatewayPage":
    """The page of a home at its HTTP entrance."""
    from potluck.display.cockpit.gateway_page import GatewayPage

    return GatewayPage(home)


def looked_at(folder: "Path") -> "RemoteCockpit":
    """The cockpit of a home that another process has open."""
    from potluck.display.cockpit import window

    url, process = window.through(folder)
    with needed():
        from potluck.display.cockpit.remote_cockpit import RemoteCockpit
    return RemoteCockpit(url, process)


def watch(
    home: "Home", run: "Run | None" = None, plans: "tuple[Plan, ...]" = ()
) -> "CockpitObserver":
    """What looks at a home for pages and terminals."""
    from potluck.display.cockpit.observed_home import ObservedHome
    from potluck.display.cockpit.observer import CockpitObserver

    return CockpitObserver(ObservedHome(home, run), plans)
