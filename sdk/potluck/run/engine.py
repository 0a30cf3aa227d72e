"""The engine of a run: hands out steps and requests, moves state, goes over to the next edition. One lock guards it."""

import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potluck.errors import PlanError, PotluckError
from potluck.profile.profiles import Profile
from potluck.records import Inference, Plan, Problem, Training
from potluck.run.crew import Crew, loss_of, states_of
from potluck.run.edition import INFER, PULL, PUSH, TRAIN, Edition, make_edition, renamed, train_name, usable_rows
from potluck.run.events import Execution
from potluck.run.history import History
from potluck.run.link import Link
from potluck.run.members import Members
from potluck.run.optimizers import Optimizer
from potluck.run.pending import COMMON_BEGIN
from potluck.run.prediction import in_turns, paced
from potluck.schedule import Compiled, compile_move
from potluck.schedule.policies import Policy
from potluck.simulate import simulate
from potluck_wire.version import parse

if TYPE_CHECKING:
    import torch

KEPT_STEPS = 64
MOMENTS = "-optimizer"  # ends the names of the programs that move the optimizer's state


class Engine:
    """One run on its devices. Every method may be called from any thread."""

    def __init__(
        self, link: Link, members: Members, model: Any, plan: Plan, *, optimizer: Optimizer | None, seed: int,
        profile: Profile | None = None, schedule: str | Policy | None = None,
        turns: bool | None = None,
    ) -> None:  # fmt: skip
        self.model, self.members, self.profile = model, members, profile
        self.step = self.n_requests = 0
        self.history = History()
        self.kept: deque[tuple[Execution, Compiled]] = deque(maxlen=KEPT_STEPS)
        self._stopped_s = float("-inf")  # when the step before ended: two are in flight
        self.failed: PotluckError | None = None
        self._turnstile, self._lock = threading.Lock(), threading.RLock()
        self._in_flight: deque[tuple[Future[Execution], Compiled, int]] = deque()
        self._n_moves = 0
        members.need(plan.devices)
        name = f"run-{uuid.uuid4().hex[:12]}"
        self.edition: Edition = self._paced(
            make_edition(model, plan, run=name, epoch=0, optimizer=optimizer, seed=seed, schedule=schedule, turns=turns)
        )
        self.crew = Crew(link, members, name)
        self.crew.commit(0, self.crew.prepare(self.edition))

    @contextmanager
    def boundary(self) -> Iterator[None]:
        """Hold the run between two steps. First come, first served: a switch gets its turn during a fit."""
        with self._turnstile:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def check(self, *, training: bool = False) -> None:
        """Raise why the run has ended, or that it is not for training."""
        if self.failed is not None:
            raise type(self.failed)(
                f"this run has ended: {self.failed}", next_step="Deploy again; a saved run can be resumed."
            ) from self.failed
        if training and not self.edition.plan.training:
            raise PlanError("this plan is for inference.", next_step="Plan with potluck.Training(...) to train.")

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Steps handed out and not collected."""
        return len(self._in_flight)

    def submit(self, batch: "tuple[torch.Tensor, ...]") -> None:
        """Hand out one step; the programs for its number of rows are made and loaded where they are new."""
        self.check(training=True)
        plan = self.edition.plan
        rows = self.model.check_inputs(*batch, train=True)
        usable = rows if rows == plan.batch else usable_rows(plan, rows)
        if usable < rows:
            note = f"{rows - usable} of {rows} rows of a batch were left out: they cannot be shared evenly."
            self.history = replace(self.history, notes=(*self.history.notes, note))
            batch = tuple(tensor[:usable] for tensor in batch)
        if not usable:
            return
        name = train_name(usable, plan)
        if name not in self.edition.compiled:
            self.renew(plan, self.edition.optimizer, (*self.sizes, usable))
        compiled = self.edition.compiled[name]
        named = {port.name: tensor for port, tensor in zip(self.model.inputs(True), batch, strict=True)}
        step = self.step + len(self._in_flight)
        future = self.crew.execute(self.edition.epoch, compiled, step, batch=named, serial=True)
        self._in_flight.append((future, compiled, usable))

    def collect(self) -> float:
        """Wait for the oldest step handed out; returns its loss."""
        future, compiled, rows = self._in_flight.popleft()
        execution = self.result(future)
        loss, begun_s = loss_of(execution, compiled), max(execution.start_s, self._stopped_s)
        seconds, self._stopped_s = execution.stop_s - begun_s, execution.stop_s
        self.step += 1
        self.kept.append((execution, compiled))
        h = self.history
        self.history = replace(h, losses=(*h.losses, loss), rows=(*h.rows, rows), step_s=(*h.step_s, seconds))
        return loss

    def finish(self) -> None:
        """Wait for all steps handed out."""
        while self._in_flight:
            self.collect()

    def result(self, future: "Future[Execution]") -> Execution:
        """Wait for an execution; its failure ends the run on every device."""
        try:
            return future.result()
        except PotluckError as error:
            self.end(error)
            raise

    def end(self, error: PotluckError) -> None:
        """End the run on every device that can be reached."""
        self.failed = self.failed or error
        self._in_flight.clear()
        self.crew.drop()

    def request(self, inputs: "Sequence[torch.Tensor]") -> "Future[Execution]":
        """Hand out one request of exactly the plan's batch."""
        with self._lock:
            number = self.n_requests
            self.n_requests += 1
        named = {port.name: tensor for port, tensor in zip(self.model.inputs(), inputs, strict=True)}
        return self.crew.execute(self.edition.epoch, self.edition.compiled[INFER], number, batch=named)

    # --- editions -----------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes besides the plan's own that there are programs for."""
        names = [name for name in self.edition.compiled if name.startswith("train-")]
        return tuple(int(name.removeprefix("train-")) for name in names)

    def renew(self, plan: Plan, optimizer: Optimizer | None, sizes: Iterable[int] = ()) -> None:
        """The next edition: prepared everywhere, state moved from device to device, then committed.

        Where any of that fails, the old edition stands.
        """
        self.finish()
        self.check()
        old = self.edition
        fitting = [rows for rows in dict.fromkeys(sizes) if rows != plan.batch and usable_rows(plan, rows) == rows]
        new = make_edition(
            self.model, plan, run=old.run, epoch=old.epoch + 1, optimizer=optimizer, sizes=fitting, seed=old.seed,
            schedule=old.schedule, turns=old.turns,
        )  # fmt: skip
        new = self._paced(new)
        moments = plan.training and self.step > 0 and same_state(optimizer, old.optimizer)
        move = compile_move(
            old.plan, old.segments, old.states(optimizer=moments), old.epoch,
            plan, new.segments, new.states(optimizer=moments),
        )  # fmt: skip
        devices = self.crew.prepare(new, renamed(move, "move"), old.plan.devices)
        try:
            if any(program.instructions for program in move.programs.values()):
                self.crew.execute(new.epoch, renamed(move, "move"), self.step).result()
            self.crew.commit(new.epoch, devices)
        except PotluckError:
            self.crew.drop(new.epoch, devices)
            raise
        self.edition = new
        if plan != old.plan:
            self.kept.clear()  # a trace tells of one plan
        self.crew.drop(-1, [device for device in old.plan.devices if device not in plan.devices])

    def problem(self, edition: Edition) -> Problem | None:
        """The planning problem that this edition solves; None where the model was not profiled for it."""
        profile, plan = self.profile, edition.plan
        if profile is None or (profile.training if plan.training else profile.inference) is None:
            return None
        if edition.optimizer is None:
            return profile.problem(Inference(batch=plan.batch))
        copies = sum(not name.startswith("step:") for name in edition.optimizer.state_names(""))
        workload = Training(batch=plan.batch, micro_batch=plan.micro_batch, optimizer_copies=copies)
        return profile.problem(workload)

    def _paced(self, edition: Edition) -> Edition:
        """The edition with turns for its transfers and the times that emulated devices shall take, as a profile says.

        A schedule of the user's own keeps other values than the one that was planned for: its peaks are foretold here.
        """
        problem = self.problem(edition)
        if problem is None and edition.turns:
            raise PlanError(
                "transfers take turns by a profile, and there is none.", next_step="Use home.profile(model)."
            )
        if problem is not None and edition.turns is not False and self._all_know_turns(edition.plan):
            steps = {n: c for n, c in edition.compiled.items() if n == INFER or n.partition("-")[0] == TRAIN}
            turns = {name: in_turns(item, problem, always=bool(edition.turns)) for name, item in steps.items()}
            edition = replace(edition, compiled={**edition.compiled, **turns})
        if problem is not None and edition.schedule is not None:
            step = INFER if edition.optimizer is None else train_name(edition.plan.batch, edition.plan)
            peaks = simulate(edition.compiled[step], problem).peak_bytes
            edition = replace(edition, plan=replace(edition.plan, peak_bytes=peaks))
        emulated = [name for name in edition.plan.devices if self.members[name].capability.get("emulated")]
        if problem is None or not emulated:
            return edition
        return replace(
            edition, compiled={name: paced(item, problem, emulated) for name, item in edition.compiled.items()}
        )

    def _all_know_turns(self, plan: Plan) -> bool:
        versions = [str(self.members[name].capability.get("version", "1.0")) for name in plan.devices]
        return all(parse(version) >= COMMON_BEGIN for version in versions)

    # --- state --------------------------------------------------------------------------------------------------------

    def pull(self, *, moments: bool = False) -> "dict[str, torch.Tensor]":
        """The weights on the devices, or the optimizer's state there, by name."""
        self.finish()
        compiled = self.edition.compiled.get(PULL + MOMENTS * moments)
        return states_of(self._move(compiled), compiled) if compiled else {}

    def push(self, states: "Mapping[str, torch.Tensor]", *, moments: bool = False) -> None:
        """Put these weights, or this state of the optimizer, onto the devices."""
        compiled = self.edition.compiled.get(PUSH + MOMENTS * moments)
        if compiled is not None:
            self._move(compiled, states)

    def _move(self, compiled: Compiled, states: "Mapping[str, torch.Tensor] | None" = None) -> Execution:
        self._n_moves += 1
        return self.result(self.crew.execute(self.edition.epoch, compiled, self._n_moves, states=states))


def same_state(one: Optimizer | None, other: Optimizer | None) -> bool:
    """Whether two optimizers keep the same kind of state."""
    return one is not None and other is not None and one.state_names("") == other.state_names("")
