"""The engine of a run: hands out steps and requests, moves state, goes over to the next plan.

Who holds the `boundary` hands out and collects steps, moves state, changes the compiled plan and
numbers epochs. `_requesting` guards what requests need, which wait for no boundary: the compiled
plan in force, their number, and which are under way. `one_migration` is held by the one switch that
is on its way to another plan, over many steps.
"""

import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from potluck.adapt.lightweight_replay import SOONEST
from potluck.errors import PlanError, PotluckError, RequestFailed, UserError
from potluck.profile.profiles import Profile
from potluck.records import Plan
from potluck.run.compiled_plan import INFER, MOVE, TRAIN, CompiledPlan, train_name
from potluck.run.device_group import DeviceGroup, losses_of, norm_of
from potluck.run.fed_steps import fed_steps
from potluck.run.history import History, latest_alike, left_out
from potluck.run.in_flight import CachesGone, NoProgram, RequestsInFlight, RunRequest
from potluck.run.plan_compiler import PlanCompiler
from potluck.run.snapshots import Protection, in_other_batches, is_loss
from potluck.run.state_transfer import RunState
from potluck.run.step_boundary import Boundary
from potluck.run.tensors import padded
from potluck.run.weight_update import Update
from potluck.schedule import Compiled, compile_move, holding, targets
from potluck.schedule.policies import Policy
from potluck.sessions import failures
from potluck.sessions.events import ExecutionResult, Session
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck.simulate.predict import IN_FLIGHT

if TYPE_CHECKING:
    import torch

    from potluck.graph.loss.constants import LossConstants
    from potluck.graph.torch.value_marks import Marks
    from potluck.run.background_snapshot import BackgroundSnapshot
    from potluck.run.batch_stream import Position
    from potluck.run.migration import PlanMigration
    from potluck.run.update_source import SchedulePlace, UpdateSource

KEPT_STEPS = 64


class RunEngine:
    """One run on its devices. Any thread may hand out requests.

    Steps and compiled plans are for who holds the boundary.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    model
        What is run.
    plan
        The first one.
    optimizer
        None for inference.
    seed
        Of the random numbers of training.
    profile
        What steps are predicted by; None predicts nothing.
    schedule
        A policy, by name or as a function; default: 1F1B, or forward only.
    order_transfers, refine_s
        As for `Home.deploy`.
    sizes
        Rows of batches, or of requests, that there are programs for, beside the plan's own.
    """

    def __init__(
        self,
        link: SessionLink,
        members: Members,
        model: Any,
        plan: Plan,
        *,
        optimizer: Update | None,
        seed: int,
        profile: Profile | None = None,
        schedule: str | Policy | None = None,
        order_transfers: bool | None = None,
        refine_s: float = 0.0,
        sizes: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.link, self.members = link, members
        self.compiler = PlanCompiler(model, members, profile, refine_s)
        self.step = 0
        self.first_step = 0
        self.n_requests = 0
        self.history = History()
        self.is_protected = False  # else a device that is lost ends the run
        self.wanted = plan  # what the user chose, or the adapter: to go back to
        self.chosen = plan  # by the user: who is not in its problem is not asked to take part
        # when the training that goes on ends, where that is known
        self.last_step: int | None = None
        self.failures = Counter[str]()  # by device, since the last new step or answer
        self.protection: Protection | None = None  # of training
        self.background: BackgroundSnapshot | None = None  # copies of it on the devices
        self.has_room_for_copies = True
        self.recovery = SOONEST
        self.patience_s = 0.0  # to wait for a lost device where nobody else can go on
        self.notify: Callable[[str], None] = lambda text: None  # who works hears it, and may end it
        self.kept: deque[tuple[ExecutionResult, Compiled]] = deque(maxlen=KEPT_STEPS)
        self._stopped_s = float("-inf")  # when the step before ended: two are in flight
        self.failed: PotluckError | None = None
        # of the model's loss, from when devices got their weights on
        self.loss_constants: LossConstants | None = None
        # of inference: marks of the module's tensors then, or what was resumed from a file
        self.value_marks: Marks = {}
        self.weights_of_file: Mapping[str, torch.Tensor] = {}
        self.unused_of_file: Mapping[str, torch.Tensor] = {}  # by names of the module
        # what the user gave as the optimizer, and the place in the data by the number of a step
        self.source: UpdateSource | None = None
        self.positions: dict[int, Position] = {}
        self.schedules: dict[int, SchedulePlace | None] = {}  # as it stood at each of these
        self.resumed_schedule: SchedulePlace | None = None  # of a saved run
        self.migration: PlanMigration | None = None  # on the way to another plan
        self.one_migration = threading.Lock()
        self.requests = RequestsInFlight()
        self.boundary = Boundary()  # between two steps
        self._requesting = threading.Lock()
        self._in_flight: deque[tuple[Future[ExecutionResult], Compiled, int]] = deque()
        self._n_epochs = 1
        # In which sessions the devices got the compiled plan in force:
        self._sessions: dict[str, Session | None] = {}
        self.state = RunState(self)
        self.compiled_plan, self.group = self._begin(
            plan, optimizer, sizes, seed=seed, schedule=schedule, order_transfers=order_transfers
        )

    def _begin(
        self,
        plan: Plan,
        optimizer: Update | None,
        sizes: tuple[int, ...] = (),
        *,
        seed: int,
        schedule: str | Policy | None,
        order_transfers: bool | None,
    ) -> tuple[CompiledPlan, DeviceGroup]:
        """The first compiled plan of a run that nobody knows yet, put into force on its devices."""
        name = f"run-{uuid.uuid4().hex[:12]}"
        compiled_plan = self.compiler.make(
            plan,
            run=name,
            epoch=0,
            optimizer=optimizer,
            sizes=sizes,
            seed=seed,
            schedule=schedule,
            order_transfers=order_transfers,
        )
        group = DeviceGroup(self.link, self.members, name)
        devices = group.prepare(0, compiled_plan.requests())
        try:
            group.commit(0, devices)
        except PotluckError:  # nobody would take it away from the others
            group.drop()
            raise
        self.know(plan)
        return compiled_plan, group

    @property
    def active(self) -> CompiledPlan:
        """The compiled plan that is at work: on the way to another plan, the transition to it."""
        return self.compiled_plan if self.migration is None else self.migration.transition

    def check(self, *, training: bool = False) -> None:
        """Refuse to go on where the run has ended, or is not for training.

        Parameters
        ----------
        training
            It is to be trained.

        Raises
        ------
        PlanError
            The plan is for inference.
        """
        if (cause := self.failed) is not None:
            why = str(cause).removeprefix(f"{cause.device}: ").removesuffix(f" {cause.next_step}")
            raise type(cause)(
                f"this run has ended: {why}",
                device=cause.device,
                next_step=self._way_on(),
                **cause.facts,
            ) from cause
        if training and not self.compiled_plan.plan.training:
            raise PlanError(
                "this plan is for inference.", next_step="Plan with potluck.Training(...) to train."
            )

    def _way_on(self) -> str:
        """What can be done once the run has ended."""
        if self.protection is None:
            return "Deploy again; a saved run can be resumed."
        return (
            f"What it had learned by step {self.protection.snapshot.step} is still here: "
            "run.save(path), then home.deploy(plan, resume=path)."
        )

    # --- steps ------------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Steps handed out and not collected."""
        return len(self._in_flight)

    @property
    def next_step(self) -> int:
        """The number of the next step to hand out."""
        return self.step + sum(compiled.n_steps for _, compiled, _ in self._in_flight)

    def submit(
        self, batch: "tuple[torch.Tensor, ...]", rates: "Sequence[torch.Tensor]" = ()
    ) -> None:
        """Hand out one step, or several whose updates come late; the programs for its number of
        rows are made and loaded where they are new.

        Parameters
        ----------
        batch
            Inputs, then targets; each [rows, ...].
        rates
            Of the optimizer in each step, where some come with it: [groups, settings].

        Raises
        ------
        UserError
            It has no row.
        """
        self.check(training=True)
        plan = self.compiled_plan.plan
        rows = self.model.check_inputs(*batch, train=True)
        if rows == 0:
            raise UserError(
                "a batch to train on needs one row or more, got none.",
                next_step="Leave empty ones out.",
            )
        parts = self.compiled_plan.step_rows(rows)
        if rows > plan.batch and len(parts) == 1:
            self.note(
                f"batches of {rows} rows are trained on as one step each; this plan predicts "
                f"{plan.batch}."
            )
        name = train_name(rows, plan)
        if name not in self.active.compiled:
            self.renew(plan, self.compiled_plan.optimizer, (*self.sizes, rows))
        compiled = self.active.compiled[name]
        named = fed_steps(self.model, batch, parts, rates, self.loss_constants)
        self._hand_out(compiled, named, rows)
        if self.protection is not None:
            self.protection.remember(rows, named, len(parts))
        if self.migration is not None:
            self.migration.follow(name, self.next_step - 1, named)

    def _hand_out(self, compiled: Compiled, named: "Mapping[str, torch.Tensor]", rows: int) -> None:
        future = self.group.execute(
            self.active.epoch, compiled, self.next_step, batch=named, stream=TRAIN
        )
        self._in_flight.append((future, compiled, rows))

    def note(self, words: str) -> None:
        """Tell this in the history; for who holds the boundary."""
        self.history = self.history.with_note(words)

    def collect(self) -> None:
        """Wait for what was handed out first."""
        future, compiled, rows = self._in_flight[0]
        execution = self.result(future)  # one that is lost stays: whoever comes next recovers
        self._in_flight.popleft()
        losses, norm = losses_of(execution, compiled), norm_of(execution, compiled)
        begun_s = max(execution.start_s, self._stopped_s)
        seconds, self._stopped_s = execution.stop_s - begun_s, execution.stop_s
        is_new = self.step - self.first_step >= len(self.history.losses)
        if self.migration is None:
            self.kept.append((execution, compiled))
        for loss, n in zip(losses, self.compiled_plan.step_rows(rows), strict=True):
            self.step += 1
            if self.protection is not None:
                self.protection.took(seconds / len(losses))
            if is_new:  # else computed again, after a device was lost
                self._took(loss, norm, n, seconds / len(losses))

    def _took(self, loss: float, norm: float, rows: int, seconds: float) -> None:
        """A step is over."""
        self.failures.clear()
        if not isfinite(loss) and all(map(isfinite, self.history.losses[-1:])):
            self.note(
                f"the loss of step {self.step} is {loss}: look at its inputs, or at the "
                "learning rate."
            )
        if self.compiled_plan.scales_loss and not isfinite(norm):
            self.note(left_out(self.step))
        update = self.compiled_plan.optimizer
        norm = norm if update is not None and update.clip_norm is not None else nan
        self.history = self.history.with_step(loss, rows=rows, step_s=seconds, gradient_norm=norm)

    def finish(self) -> None:
        """Wait for all steps handed out."""
        while self._in_flight:
            self.collect()

    def result(self, future: "Future[ExecutionResult]") -> ExecutionResult:
        """Wait for an execution. Its failure ends the run on every device, but where it is only
        about a request.

        A step of training that failed cannot be taken back: some devices may have updated their
        weights already.
        """
        try:
            return future.result()
        except RequestFailed:
            raise
        except PotluckError as error:
            if self.can_recover(error):
                raise
            self.end(error)
            # what ended the run is the cause, not what followed from it
            if self.failed is not error:
                self.check()
            raise

    def can_recover(self, error: PotluckError) -> bool:
        """Whether the run can go on, maybe without that device: a training from its snapshot."""
        return self.failed is None and self.is_protected and is_loss(error)

    def end(self, error: PotluckError) -> None:
        """End the run on every device that can be reached."""
        self.failed = self.failed or error
        self.group.drop()

    def request(
        self, inputs: "Sequence[torch.Tensor]", start: int, stop: int, *, after: object = None
    ) -> "RunRequest":
        """Hand out one request: rows from `start` on, as many as the plan in force takes at once.

        Parameters
        ----------
        inputs
            Each [rows, ...].
        start, stop
            Rows [start, stop) are still to be answered.
        after
            The compiled plan that answered those whose caches it needs; default: none.

        Raises
        ------
        CachesGone
            That is not in force any more.
        NoProgram
            They are compared, and their number needs a program of its own.
        """
        with self._requesting:
            current, number = self.compiled_plan, self.n_requests
            if after is not None and after is not current:
                raise CachesGone
            program, batch = current.answering(stop - start)
            if program not in current.infer_rows:
                raise NoProgram
            wanted = min(batch, stop - start)
            rows = [padded(tensor[start : start + wanted], batch) for tensor in inputs]
            named = {
                port.name: tensor for port, tensor in zip(self.model.inputs(), rows, strict=True)
            }
            compiled = current.compiled[program]
            traced = self.model.traced_line().traced
            predicted = traced.output_bytes(rows)
            future = self.group.execute(
                current.epoch, compiled, number, batch=named, output_bytes=predicted, request=True
            )
            self.n_requests += 1
            self.requests.add(current.epoch, future)
            return RunRequest(
                future, self.group, compiled, start, batch, wanted, traced.output_types(rows)
            )

    @property
    def is_failing(self) -> bool:
        """Whether the step that is waited for has failed already."""
        future = self._in_flight[0][0] if self._in_flight else None
        if future is None or not future.done():
            return False
        return future.cancelled() or future.exception() is not None

    @property
    def alike(self) -> "tuple[tuple[ExecutionResult, Compiled], ...]":
        """The latest steps (or requests) in a row of one number of rows: the plan's own, if any
        were.
        """
        plan = self.compiled_plan.plan
        own = train_name(plan.batch, plan) if plan.training else INFER
        return latest_alike(tuple(self.kept), own)

    # --- compiled plans ---------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes besides the plan's own that there are programs for."""
        return self.compiled_plan.sizes

    def take_epoch(self) -> int:
        """The number of the next compiled plan; none is used twice."""
        with self.boundary():
            self._n_epochs += 1
            return self._n_epochs - 1

    def next_compiled_plan(
        self, plan: Plan, optimizer: Update | None, sizes: Iterable[int] = ()
    ) -> CompiledPlan:
        """A compiled plan for this plan under a new epoch, with programs for these batch sizes,
        too.

        Parameters
        ----------
        plan
            For the same model.
        optimizer
            None for inference.
        sizes
            Rows of batches, beside the plan's own.
        """
        epoch = self.take_epoch()
        return self.compiler.after(self.compiled_plan, plan, epoch, optimizer, tuple(sizes))

    def renew(
        self,
        plan: Plan,
        optimizer: Update | None,
        sizes: Iterable[int] = (),
        *,
        afresh: bool = False,
    ) -> None:
        """The next compiled plan at once: prepared everywhere, state moved from device to device,
        then committed.

        Where any of that fails, the old compiled plan stands. A migration that was under way is
        given up.

        Parameters
        ----------
        plan
            For the same model.
        optimizer
            None for inference.
        sizes
            Rows of batches, beside the plan's own.
        afresh
            The optimizer begins without state.
        """
        self.finish()
        self.check()
        if self.migration is not None:
            self.migration.give_up()
        self.forget_copies()
        old, new = self.active, self.next_compiled_plan(plan, optimizer, sizes)
        self.check_known()
        kept, moments = self.state.going_over(new, afresh=afresh)
        holders = holding(old.plan, old.segments, old.states(optimizer=True, slots=kept), old.epoch)
        states = new.states(optimizer=True, slots=kept)
        move = compile_move(MOVE, holders, targets(plan, new.segments, states))
        devices = self.group.prepare(new.epoch, new.requests(move, old.plan.devices), beside=True)
        try:
            self.group.execute(new.epoch, move, 0).result()
            self.commit(new)
        except PotluckError:
            self.group.drop(new.epoch, devices)
            raise
        self.state.hand_back(moments)

    def commit(self, new: CompiledPlan) -> None:
        """Put a prepared compiled plan into force, first where no other is at stake.

        New requests take it at once; the others are finished before their compiled plan goes. What
        fails after that ends the run, or takes it back to its snapshot: some devices may have let
        go of the old compiled plan.
        """
        old = self.compiled_plan
        self.forget_copies()
        layers = self.model.layers(new.plan.training)
        if self.protection is not None and in_other_batches(old.plan, new.plan, layers):
            self.protect()  # steps are computed again as they were computed
        standing = [device for device in new.plan.devices if device in self.active.plan.devices]
        alone = {device: new.memory_bytes(device) for device in new.plan.devices}
        self.group.commit(
            new.epoch, [device for device in new.plan.devices if device not in standing], alone
        )
        with self._requesting:
            self.compiled_plan, self.migration = new, None
        try:
            self.requests.finish(old.epoch)
            self.group.commit(new.epoch, standing, alone)
        except PotluckError as error:
            if not self.can_recover(error):
                self.end(error)
            raise
        if new.plan != old.plan:
            self.kept.clear()  # a trace tells of one plan
            self.has_room_for_copies = True  # until a device says that it has not
        self.group.keep(new.plan.devices)
        self.know(new.plan)

    def know(self, plan: Plan) -> None:
        """The devices of this plan have got it in the sessions of now."""
        self._sessions = {name: self.members[name].session for name in plan.devices}

    def check_known(self) -> None:
        """See that no device of the plan was away since it got it: its agent may be another.

        Raises
        ------
        DeviceGone
            One was.
        """
        for name in self._sessions:
            if not self.still_knows(name):
                raise failures.was_away(name)

    def still_knows(self, name: str) -> bool:
        """Whether a device of the plan is there, and was not away since it got it.

        Parameters
        ----------
        name
            Of the device.
        """
        member = self.members.get(name)
        return member is not None and member.session is self._sessions[name]

    def begin_again(self, plan: Plan) -> None:
        """Go on with this plan, on devices of which none knows the run any more: a training from
        its snapshot, with the steps since computed again.

        Where that fails, nobody knows the run, and it can be tried again.

        Parameters
        ----------
        plan
            For the same model.
        """
        old, back_to = self.compiled_plan, self.protection.snapshot if self.protection else None
        self.forget_all()
        compiled_plan, group = self._begin(
            plan,
            back_to.optimizer if back_to else None,
            sizes=self.sizes_again,
            seed=old.seed,
            schedule=old.schedule,
            order_transfers=old.order_transfers,
        )
        self._n_epochs = 1
        self.kept.clear()
        with self._requesting:  # nobody asks before all weights are there
            self.compiled_plan, self.group = compiled_plan, group
            self.migration = None
            try:
                weights = back_to.weights if back_to else self.state.weights()
                self.state.push(weights, offered=back_to is None)
                if back_to is not None and back_to.moments:
                    self.state.push(back_to.moments, moments=True)
            except PotluckError:
                group.drop()
                raise
        group.meter()
        if self.protection is not None:
            self.compute_again(self.protection)

    @property
    def sizes_again(self) -> tuple[int, ...]:
        """Batch sizes that a compiled plan needs which goes on with another plan."""
        again = [rows for rows, _ in self.protection.batches] if self.protection else []
        return tuple(dict.fromkeys((*self.sizes, self.compiled_plan.plan.batch, *again)))

    def compute_again(self, protection: Protection) -> None:
        """The steps since the snapshot, from the same batches.

        Parameters
        ----------
        protection
            Of this run; devices have the state of its snapshot.
        """
        self.step, known = protection.snapshot.step, self.first_step + len(self.history.losses)
        for rows, named in protection.batches:
            compiled = self.compiled_plan.compiled[train_name(rows, self.compiled_plan.plan)]
            self._hand_out(compiled, named, rows)
            while self.n_in_flight >= IN_FLIGHT:
                self.collect()
        while self.step < known:
            self.collect()

    def forget_all(self, *, but_copies: bool = False) -> None:
        """No device that can be reached knows the run any more; steps and requests under way are
        given up.

        Parameters
        ----------
        but_copies
            Those of the latest snapshot stay, on devices that know nothing else of the run.
        """
        if self.migration is not None:
            self.migration.give_up()
        if not but_copies:
            self.forget_copies()
        self.requests.give_up()
        for future, _, _ in self._in_flight:
            future.cancel()
        self._in_flight.clear()
        self.group.drop(self.compiled_plan.epoch if but_copies else -1)

    def protect(self) -> None:
        """Take a snapshot to go back to, in place of the older one, while training waits."""
        assert self.protection is not None
        self.forget_copies()
        begun_s, n_devices = self.state.moved_s, len(self.compiled_plan.plan.devices)
        snapshot = self.state.snapshot()
        self.protection.begun(self.state.moved_s - begun_s, n_devices)
        self.protection.arrived(snapshot)

    def forget_copies(self) -> None:
        """No device keeps a copy of a snapshot any more."""
        if self.background is not None:
            self.background.forget()
            self.background = None
