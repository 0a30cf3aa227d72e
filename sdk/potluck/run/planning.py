"""`potluck.plan`: from a profile and a wish to judged plans; and plans from files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import FileError
from potluck.handle import resolved
from potluck.records import Inference, Plan, QoE, Training

if TYPE_CHECKING:
    from potluck.plan import Plans


def plan(profile: Any, workload: Training | Inference, qoe: QoE | None = None) -> "Plans":
    """Plans for `workload` on the profiled home, best first.

    Parameters
    ----------
    profile
        From `home.profile(model)`; a handle is waited for.
    qoe
        The user's limits; none by default.

    Raises
    ------
    Infeasible
        Where no plan holds the limits; says by how much.
    """
    from potluck.plan import make_plans

    return make_plans(resolved(profile).problem(workload, qoe or QoE()))


def load_plan(path: str | Path) -> Plan:
    """A plan from its text form."""
    from potluck.plan.text import loads

    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the plan {path}: {error}.", path=str(path)) from error
    return loads(text)
