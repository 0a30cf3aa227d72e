"""Devices that want to leave are drained: what a run has on them moves elsewhere while it goes on,
before they go.

By a live switch to the best plan without them. Where that fails, training goes over at a boundary
by way of a snapshot of that very step, so that nothing is computed twice either way. A device that
goes before it is drained is lost as any other (`run.recovery`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.errors import DeviceGone, PotluckError
from potluck.handle import Task
from potluck.records import Plan
from potluck.run.device_wait import reasons_to_leave
from potluck.run.history import DevicesLeft
from potluck.run.migration import cross
from potluck.run.recovery import plans_with, recover, surviving

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine

TRIES = 4  # others may be lost, or want to leave, meanwhile


class Drain:
    """Watches the devices of a run.

    Parameters
    ----------
    engine
        Of the run.
    moved
        Called once the run has another plan.
    """

    def __init__(self, engine: "RunEngine", moved: Callable[[], None]) -> None:
        self._engine, self._moved = engine, moved
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_asked = False

    def look(self) -> None:
        """Leave those that want to leave: the run has begun on them, or has come there."""
        for device in leaving(self._engine):
            self.leaves(device)

    def leaves(self, device: str) -> None:
        """A device wants to leave; what is to be done is done in the background."""
        engine = self._engine
        if engine.failed is not None or device not in engine.compiled_plan.plan.devices:
            return
        with self._lock:
            self._is_asked = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._work, name="potluck drain", daemon=True
                )
                self._thread.start()

    def wait(self) -> None:
        """Until nothing is left to be done now."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._is_asked:
                    self._thread = None
                    return
                self._is_asked = False
            with suppress(PotluckError):  # a device that goes all the same is lost as any other
                drain(self._engine)
                self._moved()


def leaving(engine: "RunEngine") -> tuple[str, ...]:
    """Devices of the plan that want to leave."""
    members = engine.members
    return tuple(
        d for d in engine.compiled_plan.plan.devices if d in members and members[d].leaving
    )


def drain(engine: "RunEngine") -> None:
    """Move the run off its devices that want to leave, to those that stay.

    Parameters
    ----------
    engine
        Of the run.

    Raises
    ------
    PotluckError
        It could not be moved, and stays where it is; or the run has ended.
    """
    failure: PotluckError | None = None
    for _ in range(TRIES):
        devices = leaving(engine)
        if not devices:
            return
        engine.check()
        begun_s, why = time.monotonic(), reasons_to_leave(engine.members, devices)
        plan = engine.compiled_plan.plan
        holders = [stage.devices for stage in plan.stages for _ in range(stage.start, stage.stop)]
        plans = plans_with(engine, engine.members.staying, holders)
        if not plans:
            _keep(engine, f"{why} Nobody else is there: the run goes on there while it can.")
            return
        try:
            is_live = _switched(engine, plans[0])
        except PotluckError as error:
            failure = error
            continue
        if is_live:
            _notify(engine, devices, why, time.monotonic() - begun_s)
    if failure is not None and leaving(engine):
        why = reasons_to_leave(engine.members, leaving(engine))
        _keep(engine, f"{why} The run could not move: {failure}")
        raise failure


def _switched(engine: "RunEngine", plan: Plan) -> bool:
    """Go over to this plan by a live switch; whether that went well.

    Else as after a loss, which is told as a recovery: training by way of a snapshot of now.
    """
    before = engine.compiled_plan.plan
    try:
        cross(engine, plan, Task())
        return True
    except PotluckError:
        if engine.failed is not None or not engine.is_protected:
            raise
    with engine.boundary():
        # what was lost meanwhile may have moved the run already
        devices = leaving(engine) if engine.compiled_plan.plan == before else ()
        if devices and engine.protection is not None:
            surviving(engine, engine.protect)
        if devices and engine.compiled_plan.plan == before:
            gone = DeviceGone(reasons_to_leave(engine.members, devices), device=devices[0])
            recover(engine, gone)
    return False


def _keep(engine: "RunEngine", note: str) -> None:
    """The run stays where it is: all that it has learned is here, should its devices go."""
    with engine.boundary():
        if note not in engine.history.notes:  # they may say so again and again
            engine.note(note)
        if engine.protection is not None:
            surviving(engine, engine.protect)


def _notify(engine: "RunEngine", devices: Sequence[str], why: str, seconds: float) -> None:
    with engine.boundary():
        plan = engine.compiled_plan.plan
        record = DevicesLeft(
            step=engine.step,
            left=tuple(devices),
            reason=why,
            devices=plan.devices,
            planner=plan.planner,
            seconds=seconds,
        )
        history = engine.history
        engine.history = replace(history, departures=(*history.departures, record))
        engine.note(record.words)
