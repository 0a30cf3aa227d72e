"""Snapshots that training does not wait for, in two phases as of CheckFreq (Mohan et al., FAST
2021, section 4.1): at a boundary every device copies its state within its own memory, which is
quick. While training goes on, the copies of the leads come home behind everything else on the air.

The copies stay where they are until the next snapshot or compiled plan: after a loss those that are
left go on from them (`surviving_copies`).
"""

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from potluck import units
from potluck.errors import OutOfMemory
from potluck.run.compiled_plan import MOVE, Requests, request
from potluck.run.device_group import state_types, states_of
from potluck.run.snapshots import Snapshot
from potluck.schedule import SegmentTarget, compile_move, compile_pull, holding
from potluck_wire.messages import Prepare

if TYPE_CHECKING:
    import torch

    from potluck.run.engine import RunEngine
    from potluck.sessions.events import ExecutionResult

STREAM = "snapshot"


def keep_protected(engine: "RunEngine") -> None:
    """Begin a snapshot where one is due, and take in what has come home.

    Training waits for the whole of it where the user has said how often, or a device lacks the
    memory for a copy. It also waits on the way to another plan, when memory is short anyway.

    Parameters
    ----------
    engine
        Of a run that is protected; the caller holds its boundary.
    """
    protection = engine.protection
    assert protection is not None  # a run that trains, protected
    under_way = engine.background
    if under_way is not None and under_way.is_arriving:
        if under_way.has_arrived or protection.is_late:
            under_way.take_in()
        return
    if not protection.is_due:
        return
    is_migrating = engine.one_migration.locked() or engine.migration is not None
    may_copy = not (protection.is_exact or is_migrating or engine.step == 0)
    if not (may_copy and _has_begun(engine)):
        engine.protect()


def _has_begun(engine: "RunEngine") -> bool:
    """Begin a snapshot in the background; False where there is no room for it."""
    if engine.background is None and engine.has_room_for_copies:
        background = BackgroundSnapshot(engine)
        try:
            background.prepare()
            engine.background = background
        except OutOfMemory as error:
            engine.has_room_for_copies = False
            engine.note(
                f"{error.device} has no room for a second copy of its state, "
                f"{units.size(engine.compiled_plan.copied_bytes(error.device))}: training waits "
                "for its snapshots. A higher --memory there, or fewer of its layers, would do."
            )
    if engine.background is None:
        return False
    engine.background.begin()
    return True


class BackgroundSnapshot:
    """Copies of all state of one step on the devices of a plan, and their way home.

    Parameters
    ----------
    engine
        Of the run; the caller holds its boundary, here and in every call.
    """

    def __init__(self, engine: "RunEngine") -> None:
        self._engine, self._compiled_plan = engine, engine.compiled_plan
        self.epoch, self.step = engine.take_epoch(), 0
        self.is_home = False  # whether the copies are those of the latest snapshot
        compiled_plan = self._compiled_plan
        self._states = compiled_plan.states(optimizer=True)
        self._copy = compile_move(MOVE, self._holders(compiled_plan.epoch), self._targets())
        self._bring = compile_pull(
            compiled_plan.plan, compiled_plan.segments, self._states, in_background=True
        )
        self._arriving: Future[ExecutionResult] | None = None
        self._begun_s = 0.0

    def _targets(self) -> list[SegmentTarget]:
        """Every device of a stage copies what it has of it: what replicas count, its lead has."""
        found = []
        for stage, segment in zip(
            self._compiled_plan.plan.stages, self._compiled_plan.segments, strict=True
        ):
            states = self._states[segment.name]
            others = tuple(device for device in stage.devices if device != stage.lead)
            alike = [state for state in states if not state.counts]
            found += [SegmentTarget(segment.name, (stage.lead,), states)]
            found += [SegmentTarget(segment.name, others, alike)] * bool(others)
        return found

    def _holders(self, epoch: int) -> dict[str, dict[str, str]]:
        return holding(self._compiled_plan.plan, self._compiled_plan.segments, self._states, epoch)

    def holders(self) -> dict[str, dict[str, str]]:
        """Where every state is in the copies; see `holding`."""
        return self._holders(self.epoch)

    def nbytes(self, device: str) -> int:
        """What the copies on a device take of its memory."""
        return self._compiled_plan.copied_bytes(device)

    def prepare(self) -> None:
        """Load an epoch for the copies beside the compiled plan that is at work.

        Raises
        ------
        OutOfMemory
            A device may not use as much.
        """
        self._engine.group.prepare(self.epoch, self._requests())

    def _requests(self) -> Requests:
        compiled_plan = self._compiled_plan
        pairs = [*zip(compiled_plan.plan.stages, compiled_plan.pieces, strict=True)]
        return {
            device: request(
                device,
                Prepare(
                    run=compiled_plan.run,
                    epoch=self.epoch,
                    memory_bytes=compiled_plan.memory_bytes(device) + self.nbytes(device),
                    seed=compiled_plan.seed,
                ),
                [piece for stage, piece in pairs if device in stage.devices],
                [self._copy, self._bring],
                compiled_plan.kinds[device],
            )
            for device in compiled_plan.plan.devices
        }

    def begin(self) -> None:
        """Copy the state of now, and let it come home while training goes on."""
        engine = self._engine
        assert engine.protection is not None
        engine.finish()
        self.is_home = False
        copied = engine.result(engine.group.execute(self.epoch, self._copy, engine.step))
        engine.protection.begun(
            copied.stop_s - copied.start_s, len(self._compiled_plan.plan.devices)
        )
        self.step, self._begun_s = engine.step, time.monotonic()
        self._arriving = engine.group.execute(self.epoch, self._bring, self.step, stream=STREAM)

    @property
    def is_arriving(self) -> bool:
        """Whether it is not taken in yet."""
        return self._arriving is not None

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is here, or has failed."""
        return self._arriving is not None and self._arriving.done()

    def take_in(self) -> None:
        """Wait for it, and go back to it from now on."""
        engine, compiled_plan = self._engine, self._compiled_plan
        assert self._arriving is not None
        assert engine.protection is not None
        assert compiled_plan.optimizer is not None
        execution = engine.result(self._arriving)
        self._arriving = None
        states = self._states_of(execution)
        moments = state_types(engine.model, compiled_plan.optimizer)
        snapshot = Snapshot(
            step=self.step,
            optimizer=compiled_plan.optimizer,
            weights=engine.state.with_weights(
                {n: t for n, t in states.items() if n not in moments}
            ),
            moments={name: tensor for name, tensor in states.items() if name in moments},
        )
        engine.protection.arrived(snapshot, time.monotonic() - self._begun_s)
        self.is_home = True

    def _states_of(self, execution: "ExecutionResult") -> "dict[str, torch.Tensor]":
        engine = self._engine
        weights = state_types(engine.model, None)
        moments = state_types(engine.model, self._compiled_plan.optimizer)
        return states_of(execution, self._bring, {**weights, **moments})

    def forget(self) -> None:
        """The copies go; what has not come home is given up."""
        if self._arriving is not None:
            self._arriving.cancel()
        self._engine.group.drop(self.epoch, self._compiled_plan.plan.devices)
