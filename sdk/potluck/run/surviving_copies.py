"""After a loss the same run goes on from the copies of its latest snapshot that are left on the
devices: they give each other what they have, and only the rest comes from the notebook.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.errors import DeviceGone, PotluckError
from potluck.run.compiled_plan import MOVE
from potluck.schedule import compile_move, targets

if TYPE_CHECKING:
    from potluck.records import Plan
    from potluck.run.engine import RunEngine

Holders = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingCopies:
    """Copies of the latest snapshot: who holds each state in which segment, and the bytes that they
    take of the memory of each device that still knows the run.
    """

    holders: Holders
    nbytes: Mapping[str, int]

    def of_layers(self, plan: "Plan") -> list[list[str]]:
        """Of each layer, who has a copy of its state.

        Parameters
        ----------
        plan
            Under which they were made.
        """
        return [
            [device for device in stage.devices if device in self.nbytes]
            for stage in plan.stages
            for _ in range(stage.start, stage.stop)
        ]


def surviving_copies(engine: "RunEngine", error: PotluckError) -> SurvivingCopies | None:
    """What is left of the copies after this loss; None where devices cannot go on from them.

    A device whose worker ended knows the run no more, and where copies are newer than what has come
    home, what the lost one held of them is nowhere.

    Parameters
    ----------
    engine
        Of the run; the caller holds its boundary.
    error
        What was lost.
    """
    background = engine.background
    if background is None or not isinstance(error, DeviceGone):
        return None
    if background.has_arrived:
        try:
            background.take_in()
        except PotluckError:
            return None
    if not background.is_home:
        return None
    survivors = [name for name in engine.compiled_plan.plan.devices if engine.still_knows(name)]
    holders = {
        state: {device: slot for device, slot in slots.items() if device in survivors}
        for state, slots in background.holders().items()
    }
    return SurvivingCopies(
        holders=holders, nbytes={device: background.nbytes(device) for device in survivors}
    )


def go_on_from(engine: "RunEngine", copies: SurvivingCopies, plan: "Plan") -> None:
    """Go on with this plan in the same run, and compute the steps since the snapshot again.

    Parameters
    ----------
    engine
        Of the run; the caller holds its boundary. Of its epochs only that of the copies is left.
    copies
        On devices that still know the run.
    plan
        For the same model.

    Raises
    ------
    PotluckError
        It cannot be; then no device must know the run any more.
    """
    assert engine.protection is not None
    snapshot = engine.protection.snapshot
    new = engine.next_compiled_plan(plan, snapshot.optimizer, engine.sizes_again)
    states = new.states(optimizer=bool(snapshot.moments))
    move = compile_move(
        MOVE, copies.holders, targets(plan, new.segments, states), home_has_all=True
    )
    needed = {
        device: new.memory_bytes(device) * (device in plan.devices) + copies.nbytes.get(device, 0)
        for device in move.programs
    }
    engine.group.keep(copies.nbytes)
    engine.group.prepare(new.epoch, new.requests(move, move.programs, needed))
    sent = {**snapshot.weights, **snapshot.moments}
    engine.result(engine.group.execute(new.epoch, move, 0, states=sent))
    alone = {device: new.memory_bytes(device) for device in plan.devices}
    engine.group.commit(new.epoch, plan.devices, alone)
    engine.compiled_plan, engine.background = new, None
    engine.kept.clear()
    engine.group.keep(plan.devices)
    engine.know(plan)
    engine.group.meter()
    engine.compute_again(engine.protection)
