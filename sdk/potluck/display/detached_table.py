"""A training that a coordinator has, as a table. Pure."""

from collections.abc import Sequence

from potluck import units
from potluck.display.tables import Bar, Table


def detached(
    job: str,
    state: str,
    step: int,
    n_steps: int,
    losses: Sequence[float],
    notes: Sequence[str],
    why: str,
) -> Table:
    """A training that a coordinator has, in one row."""
    done = Bar(frac=step / max(1, n_steps), text=f"step {step} of {n_steps}")
    row = (state, done, f"{losses[-1]:.4g}" if losses else units.UNKNOWN)
    table_notes = (*([why] if why else []), *notes)
    title = f"Training {job}, detached"
    return Table(
        title=title, columns=("state", "done", ">last loss"), rows=(row,), notes=table_notes
    )
