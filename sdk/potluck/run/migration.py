"""Going over to another plan while the run goes on: what a device lacks comes to it behind
everything else, and only when all of it is there does a step boundary put the new plan into force.

Requests: weights do not change, so they are copied under the old plan; then new requests take the
new plan, and those under way finish on the old one. Training: weights change with every step, so
whoever lacks a stage becomes its standby first (`schedule.standby`) and is in step when the plan
changes. Epochs of a migration, in order: the old plan, whose weights stand still as of the first
boundary; the transition, the old plan once more, which shows the standbys what they need; the
standbys; the new plan. Until that is committed, every failure takes the run back to the old plan.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING

from potluck.errors import PotluckError
from potluck.graph.backends import kind_on
from potluck.handle import Task
from potluck.records import Plan
from potluck.run.compiled_plan import (
    MOVE,
    CompiledPlan,
    any_work,
    compile_for_run,
    follow_name,
    held_bytes,
    request,
    train_name,
)
from potluck.run.recovery import recover, see_all, surviving
from potluck.schedule import (
    FOLLOW,
    Compiled,
    SegmentTarget,
    compile_follow,
    compile_move,
    followed_bytes,
    holding,
    refined,
    targets,
)
from potluck.schedule.micro_batches import divide
from potluck.schedule.standby import COPY
from potluck.sessions.events import ExecutionResult
from potluck_wire.messages import Prepare

if TYPE_CHECKING:
    import torch

    from potluck.run.engine import RunEngine

FETCH = "fetch"
LOOK_S = 0.02  # between two looks at how far it is
IN_STEP = 2  # steps behind: those that are under way anyway
MAX_STALLED_STEPS = 8  # steps in which a standby that does not come closer may try
# steps kept for a standby, and no more bytes than this part of what its agent holds for the worker:
MOST_BEHIND = 224  # a device takes 256 executions at once, and training goes on beside
ARENA_FRAC = 0.25


class PlanReplaced(Exception):
    """The run went on to another compiled plan meanwhile, for a new batch size or after a loss: the
    migration begins anew.
    """


def cross(engine: "RunEngine", plan: Plan, task: Task) -> None:
    """Bring the run over to `plan`. Whatever goes wrong, the old plan stands, or the run has ended
    with its cause.

    Parameters
    ----------
    engine
        Of the run.
    plan
        The new one.
    task
        Where progress is reported.
    """
    way = _cross_training if plan.training else _cross_requests
    again = False
    with engine.one_migration:
        with engine.boundary():  # the old plan has to be there
            surviving(engine, engine.check_known)
            engine.forget_copies()  # memory will be short
        while True:
            try:
                return way(engine, plan, task)
            except PlanReplaced:
                task.check()
            except PotluckError as error:
                engine.check()  # what ended the run is the cause, not what followed from it
                is_ours = error.device in engine.compiled_plan.plan.devices
                if again or not is_ours or not engine.can_recover(error):
                    raise
                again = True
                with engine.boundary():
                    surviving(engine, lambda: see_all(engine))


def _await(pending: "list[Future[ExecutionResult]]", look: Callable[[], None]) -> None:
    """Wait for all of them; `look` raises where that makes no sense any more."""
    while pending:
        look()
        done, _ = wait(pending, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            look()
            pending.remove(future)
            future.result()


# --- requests -------------------------------------------------------------------------------------


def _cross_requests(engine: "RunEngine", plan: Plan, task: Task) -> None:
    def look() -> None:
        task.check()
        engine.check()
        if is_overtaken():
            raise PlanReplaced

    def is_overtaken() -> bool:
        """Whether the run has gone on without us: after a loss, or with more programs."""
        return engine.group is not group or engine.compiled_plan not in (old, new)

    with engine.boundary():
        old, group = engine.compiled_plan, engine.group
        new = engine.next_compiled_plan(plan, None, engine.sizes)
    move = compile_move(
        MOVE,
        holding(old.plan, old.segments, old.states(optimizer=False), old.epoch),
        targets(plan, new.segments, new.states(optimizer=False)),
        offered=engine.state.offered,
    )
    states = engine.state.with_weights({})
    devices = dict.fromkeys((*plan.devices, *old.plan.devices))
    memory = {d: old.held_bytes(d) + new.held_bytes(d) + _work_bytes(d, old, new) for d in devices}
    requests = new.requests(move, devices, memory)
    task.update(0.1, "loading the plan")
    try:
        group.prepare(new.epoch, requests)
        task.update(0.2, "copying weights")
        _await([group.execute(new.epoch, move, 0, states=states, offered=True)], look)
        with engine.boundary():
            look()
            _commit(engine, new)
    except BaseException as error:
        group.drop(new.epoch, requests)
        with engine.boundary():  # who recovers is at it until then
            if is_overtaken() and isinstance(error, PotluckError):
                raise PlanReplaced from error
        raise


def _commit(engine: "RunEngine", new: CompiledPlan) -> None:
    """Put it into force; where only some devices have it by a loss, go on with those that are left.

    Raises
    ------
    PotluckError
        What was lost, where the run goes on with another plan.
    """
    try:
        engine.commit(new)
    except PotluckError as error:
        if engine.compiled_plan is not new or not engine.can_recover(error):
            raise
        recover(engine, error)
        if engine.compiled_plan.plan != new.plan:
            raise


def _work_bytes(device: str, *compiler: CompiledPlan) -> int:
    """What a plan needs at most beside what it holds: one of them is at work at a time."""
    return max(
        0,
        *(
            compiled_plan.memory_bytes(device) - compiled_plan.held_bytes(device)
            for compiled_plan in compiler
        ),
    )


# --- training -------------------------------------------------------------------------------------


def _cross_training(engine: "RunEngine", plan: Plan, task: Task) -> None:
    if engine.migration is not None:  # left behind by one that failed, and could not even turn back
        with engine.boundary():
            engine.renew(engine.compiled_plan.plan, engine.compiled_plan.optimizer, engine.sizes)
    update = engine.compiled_plan.optimizer
    is_late = update is not None and update.one_step_late is not None
    migration = None if is_late else PlanMigration(engine, plan)  # nobody can follow late updates
    if migration is None or not migration.is_needed:
        with engine.boundary():
            task.check()
            engine.renew(plan, engine.compiled_plan.optimizer, engine.sizes)
        return
    try:
        task.update(0.1, "loading what is missing")
        migration.prepare()
        with engine.boundary():
            task.check()
            migration.open()
        task.update(0.2, "fetching what is missing")
        migration.catch_up(task)
        with engine.boundary():
            task.check()
            migration.close()
    except PotluckError as error:
        overtaken = migration.is_overtaken  # then devices may have refused our epochs as old
        migration.turn_back()
        if overtaken:
            raise PlanReplaced from error
        raise
    except BaseException:
        migration.turn_back()
        raise


class PlanMigration:
    """A training run on its way to `plan`."""

    def __init__(self, engine: "RunEngine", plan: Plan) -> None:
        self._engine, self._plan = engine, plan
        with engine.boundary():  # whoever recovers makes another run, and numbers anew
            self._old, self._group = engine.compiled_plan, engine.group
            epoch, self._standby_epoch, new_epoch = (engine.take_epoch() for _ in range(3))
            sizes = engine.sizes
        old = self._old
        self.transition = transition = engine.compiler.paced(
            compile_for_run(
                engine.model,
                refined(old.plan, plan),
                run=old.run,
                epoch=epoch,
                optimizer=old.optimizer,
                backends=engine.compiler.backends(old.plan.devices),
                sizes=sizes,
                seed=old.seed,
                schedule="1f1b",  # its stages are other ones
                order_transfers=False,
                towards=plan,
            )
        )
        self._new = engine.compiler.after(old, plan, new_epoch, old.optimizer, sizes)
        holders = holding(old.plan, old.segments, old.states(optimizer=True), old.epoch)
        states = transition.states(optimizer=True)
        standbys = [
            (transition.segments[standby.stage].name, standby.devices)
            for standby in transition.standbys
        ]
        self._keep = compile_move(
            MOVE, holders, targets(transition.plan, transition.segments, states)
        )
        self._fetch = compile_move(
            FETCH, holders, [SegmentTarget(name, who, states[name]) for name, who in standbys]
        )
        self._move = compile_move(
            MOVE,
            self._holders(),
            targets(plan, self._new.segments, self._new.states(optimizer=True)),
        )
        rows = dict.fromkeys((old.plan.batch, *sizes))
        self._follow = {train_name(n, old.plan): self._follow_of(n) for n in rows}
        # who holds the boundary changes it; all others only look
        self._behind: list[Future[ExecutionResult]] = []
        self._fetching: list[Future[ExecutionResult]] = []
        self._given_up = False

    @property
    def is_needed(self) -> bool:
        """Whether any device lacks anything."""
        return bool(self.transition.standbys)

    @property
    def is_overtaken(self) -> bool:
        """Whether the run has gone on to a compiled plan that is neither the old nor the new
        one.
        """
        engine = self._engine
        return (
            engine.failed is None
            and engine.compiled_plan is not self._old
            and engine.compiled_plan is not self._new
        )

    def _follow_of(self, rows: int) -> Compiled:
        transition = self.transition
        name = follow_name(rows, transition.plan)
        update = transition.step_update(self._engine.model.trained)
        division = divide(transition.plan, transition.segments, rows)
        compiled = compile_follow(
            name,
            transition.plan,
            transition.segments,
            update,
            transition.standbys,
            division=division,
        )
        return self._engine.compiler.paced_programs(compiled, transition)

    def _holders(self) -> dict[str, dict[str, str]]:
        """Where every state is when all standbys are in step."""
        transition = self.transition
        found = holding(
            transition.plan,
            transition.segments,
            transition.states(optimizer=True),
            transition.epoch,
        )
        for standby in transition.standbys:
            piece = transition.pieces[standby.stage]
            for state in transition.states(optimizer=True)[piece.segment.name]:
                if standby.way == COPY and state.counts:
                    continue  # nobody computes there, so counters stand still; they are a few bytes
                for device in standby.devices:
                    found[state.name][device] = f"{self._standby_epoch}/{piece.segment.name}"
        return found

    # --- loading ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Load the transition and the standbys."""
        transition, group = self.transition, self._group
        memory = {device: self.needs_bytes(device, self._old) for device in self._devices}
        group.prepare(transition.epoch, transition.requests(self._keep, (), memory))
        programs = [self._fetch, *self._follow.values()]
        group.prepare(
            self._standby_epoch,
            {
                device: request(
                    device,
                    Prepare(
                        run=transition.run,
                        epoch=self._standby_epoch,
                        memory_bytes=memory[device],
                        seed=transition.seed,
                    ),
                    [
                        transition.pieces[standby.stage]
                        for standby in transition.standbys
                        if device in standby.devices
                    ],
                    programs,
                    kind_on(
                        self._engine.model,
                        device,
                        self._engine.compiler.backends([device])[device],
                        train=True,
                    ),
                )
                for device in self._fetch.programs
            },
        )

    @property
    def _devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._old.plan.devices, *self._plan.devices)))

    def needs_bytes(self, device: str, other: CompiledPlan) -> int:
        """What a device needs while the transition, the standbys and one compiled plan more are
        there.
        """
        transition = self.transition
        standbys = [transition.pieces[s.stage] for s in transition.standbys if device in s.devices]
        held = transition.held_bytes(device) + other.held_bytes(device)
        held += sum(held_bytes(piece, transition.optimizer) for piece in standbys)
        return held + _work_bytes(device, self._old, self._new)

    # --- at the first boundary, and after it ------------------------------------------------------

    def open(self) -> None:
        """The transition takes over; the old plan's weights stand still, and the standbys fetch
        them.

        Raises
        ------
        PlanReplaced
            The run went on to another compiled plan meanwhile.
        """
        engine, transition = self._engine, self.transition
        if engine.compiled_plan is not self._old:
            raise PlanReplaced
        engine.finish()
        self._group.execute(transition.epoch, self._keep, 0).result()
        self._fetching = [self._group.execute(self._standby_epoch, self._fetch, 0, stream=FOLLOW)]
        engine.migration = self

    def follow(self, train: str, step: int, batch: "Mapping[str, torch.Tensor]") -> None:
        """The standbys shall take this step too. Waits while they are too far behind.

        Parameters
        ----------
        train
            Name of the program of the step.
        step
            Its number.
        batch
            What home feeds of it, by name; each [rows, ...].
        """
        compiled = self._follow[train]
        if self._given_up or not any_work(compiled):
            return
        while self.n_behind >= self._most_behind(compiled) and not self._is_stuck():
            self._await_step()
        self._behind = self._not_taken()
        self._behind.append(
            self._group.execute(self._standby_epoch, compiled, step, batch=batch, stream=FOLLOW)
        )

    def _most_behind(self, compiled: Compiled) -> int:
        """Steps that may be kept for the standbys."""
        rows = max((feed.stop for feed in compiled.feeds), default=self.transition.plan.batch)
        nbytes = followed_bytes(
            self.transition.plan, self.transition.segments, self.transition.standbys
        )
        per_step = max(1, nbytes * rows // self.transition.plan.batch)
        members = self._engine.members
        room = min(
            int(members[d].capability.get("max_value_bytes") or per_step)
            for d in self._fetch.programs
        )
        return max(IN_STEP, min(MOST_BEHIND, int(ARENA_FRAC * room / per_step)))

    @property
    def n_behind(self) -> int:
        """Steps that the standbys have not taken yet."""
        return len(self._not_taken())

    def _not_taken(self) -> "list[Future[ExecutionResult]]":
        """Steps that the standbys have not taken yet.

        One that failed counts, until the migration has noticed.
        """
        return [
            f
            for f in tuple(self._behind)
            if not f.done() or f.cancelled() or f.exception() is not None
        ]

    def _await_step(self) -> None:
        """Until the standbys have taken one more step, or it is time to look.

        Steps that were taken before end no wait: that would be a busy loop beside the training.
        """
        pending = [future for future in tuple(self._behind) if not future.done()]
        wait(pending, timeout=LOOK_S, return_when=FIRST_COMPLETED)

    def _is_stuck(self) -> bool:
        return (
            self._given_up
            or self._engine.is_failing
            or any(future.done() for future in self._behind)
        )

    def _look(self, task: Task) -> None:
        """Raise what ends the migration."""
        task.check()
        if self._given_up or self._engine.migration is not self:
            raise PlanReplaced
        self._engine.check()
        for future in self._behind:
            if future.done():
                future.result()

    def catch_up(self, task: Task) -> None:
        """Until the standbys are in step, or come no closer; meanwhile the new plan is loaded."""
        engine, new = self._engine, self._new
        _await(self._fetching, lambda: self._look(task))
        self._group.drop(self._old.epoch, self._old.plan.devices)
        memory = {
            device: max(self.needs_bytes(device, e) for e in (self._old, new))
            for device in self._devices
        }
        try:
            self._group.prepare(new.epoch, new.requests(self._move, self._move.programs, memory))
        except PotluckError:
            self._look(task)
            raise
        task.update(0.9, "catching up")
        fewest, since = self.n_behind, engine.step
        while (behind := self.n_behind) > IN_STEP and engine.step - since < MAX_STALLED_STEPS:
            self._look(task)
            if behind < fewest:
                fewest, since = behind, engine.step
            self._await_step()
        self._look(task)

    # --- at the last boundary ---------------------------------------------------------------------

    def close(self) -> None:
        """The standbys become owners: nothing moves but within devices.

        Raises
        ------
        PlanReplaced
            The run went on to another compiled plan meanwhile.
        """
        engine, new = self._engine, self._new
        if self._given_up or engine.migration is not self:
            raise PlanReplaced
        engine.finish()
        _await([*self._behind], engine.check)
        self._group.execute(new.epoch, self._move, 0).result()
        engine.commit(new)

    def turn_back(self) -> None:
        """Whatever is there of it goes, and the run is under its old plan again, with all it has
        learned.
        """
        engine = self._engine
        with engine.boundary():
            if engine.compiled_plan is self._new:
                return
            self.give_up()
            if engine.migration is self and engine.failed is None:
                engine.renew(self._old.plan, self._old.optimizer, engine.sizes)

    def give_up(self) -> None:
        """Nobody follows any more; the transition still stands if it is in use."""
        engine, group = self._engine, self._group
        self._given_up = True
        for future in (*self._fetching, *self._behind):
            future.cancel()
        group.drop(self._standby_epoch, self._fetch.programs)
        group.drop(self._new.epoch, self._move.programs)
        if engine.migration is not self:
            group.drop(self.transition.epoch, self._old.plan.devices)
        else:
            group.drop(self._old.epoch, self._old.plan.devices)
