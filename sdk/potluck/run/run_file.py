"""A run as one file's worth: what it needs to go on as if nothing had happened."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.graph.values import check_values
from potluck.run.batch_stream import Position
from potluck.run.checkpoint import Checkpoint
from potluck.run.recovery import surviving
from potluck.run.update_source import in_use
from potluck.run.weight_update import is_average

if TYPE_CHECKING:
    import torch

    from potluck.run.engine import RunEngine


def checkpoint_of(
    engine: "RunEngine", *, latest: bool, patience_s: float | None = None
) -> Checkpoint:
    """The state of now; where the run has ended, or the `latest` is not asked for, that which it
    goes back to where a device is lost.

    Parameters
    ----------
    engine
        Of a training.
    latest
        Ask the devices.
    patience_s
        Wait no longer for one that is lost; default: as long as the run does.
    """
    kept = engine.protection
    positions, schedules = engine.positions, engine.schedules
    if kept is not None and (engine.failed is not None or not latest):
        state = kept.snapshot
    else:
        engine.check(training=True)
        with engine.boundary(), _patient(engine, patience_s):
            state = surviving(engine, engine.state.snapshot)
            positions, schedules = engine.positions, engine.schedules
    compiled_plan, source = engine.compiled_plan, engine.source
    return Checkpoint(
        signature=engine.model.signature,
        plan=compiled_plan.plan,
        optimizer=state.optimizer if source is None else source.at_rest(state.optimizer),
        step=state.step,
        seed=compiled_plan.seed,
        weights=dict(state.weights),
        moments=dict(state.moments),
        unused=engine.model.unused_state() | engine.unused_of_file,
        position=positions.get(state.step),
        schedule=engine.resumed_schedule or schedules.get(state.step),
        wanted=engine.wanted if engine.wanted != compiled_plan.plan else None,
    )


@contextmanager
def _patient(engine: "RunEngine", patience_s: float | None) -> Iterator[None]:
    before = engine.patience_s
    engine.patience_s = before if patience_s is None else min(before, patience_s)
    try:
        yield
    finally:
        engine.patience_s = before


def position_of(engine: "RunEngine", *, under_way: bool) -> Position:
    """Where the latest training of a run, or of the one that it goes on with, stood in its data.

    Parameters
    ----------
    engine
        Of the run.
    under_way
        A training goes on.

    Raises
    ------
    UserError
        It stands nowhere yet, or it is not known.
    """
    if under_way:
        raise UserError("another fit is under way.", next_step="Wait for it, or cancel it.")
    found = engine.positions.get(engine.next_step)
    if found is None:
        raise UserError(
            "it is not known how far a training had come in its data.",
            next_step="Leave out resume=True.",
        )
    return found


def all_state(engine: "RunEngine", *, ema: bool = False) -> "dict[str, torch.Tensor]":
    """All that devices keep, as it is on them now: what belongs to the loss, too.

    Parameters
    ----------
    engine
        Of the run.
    ema
        Of each weight that is trained, its moving average in its place.

    Raises
    ------
    UserError
        No average is kept.
    """
    engine.check(training=ema)
    check_values(engine.model, engine.value_marks)
    with engine.boundary():
        if ema and in_use(engine).update.average is None:
            raise UserError(
                "no moving average of the weights is kept.",
                next_step="run.fit(data, ema=0.999) keeps one.",
            )
        state = surviving(engine, engine.state.weights)
        moments = surviving(engine, lambda: engine.state.pull(moments=True)) if ema else {}
    averages = {n.partition(":")[2]: t for n, t in moments.items() if is_average(n)}
    return state | averages
