"""One call of `fit`: its batches go out one after the other, and it tells of their losses."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from potluck.argument_checks import check_flags, number_of
from potluck.errors import PlanError, UserError
from potluck.handle import Task
from potluck.records import Plan, Problem, Trace
from potluck.run import batches
from potluck.run.adapting import Adapting
from potluck.run.background_snapshot import keep_protected
from potluck.run.batch_stream import BatchStream, Position
from potluck.run.callbacks import Watchers, metrics_of
from potluck.run.engine import RunEngine
from potluck.run.history import History
from potluck.run.optimizers import Optimizer
from potluck.run.pacing import Pacing
from potluck.run.recovery import surviving
from potluck.run.rejoin import Rejoin
from potluck.run.update_source import UpdateRequest, UpdateSource, has_begun, in_use
from potluck.run.weight_update import Update
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.simulate.predict import IN_FLIGHT

if TYPE_CHECKING:
    import torch

GoOver = Callable[[Plan, Task], None]
Traced = Callable[[Sequence[tuple[ExecutionResult, Compiled]]], Trace]


class FitCall:
    """It waits for its turn, trains, and may be ended before all is done.

    Parameters
    ----------
    engine
        Of the run.
    data, epochs, accumulate, adapt, deadline_s
        As for `Run.fit`.
    request
        What it says of the rule of its steps.
    watchers
        Who looks on.
    position
        In the data, where it goes on.
    """

    def __init__(
        self,
        engine: RunEngine,
        data: Any,
        epochs: int,
        *,
        request: UpdateRequest,
        watchers: Watchers,
        accumulate: int = 1,
        position: Position | None = None,
        adapt: bool,
        deadline_s: float | None,
    ) -> None:
        self._engine = engine
        self._data = data
        self._epochs = epochs
        self.request, self._watchers = request, watchers
        self._accumulate = accumulate
        self._adapt, self._deadline_s = adapt, deadline_s
        self._resumes = position is not None
        self._task = Task()
        plan, late = engine.compiled_plan.plan, request.one_step_late
        self._batch = plan.batch  # rows of a step, where updates come late
        self._stream = BatchStream(
            data,
            plan.batch,
            engine.model.arguments,
            epochs,
            accumulate=late or accumulate,
            position=position,
            even=None if late is None else plan.batch,
        )
        self._total: int | None = None
        self._minders: list[Adapting | Pacing | Rejoin] = []  # what else looks at its steps
        self._first = 0
        self._n_reported = 0
        self._epoch_begun = 0
        self._first_epoch = self._stream.position.epoch
        self._source: UpdateSource | None = None
        # of the steps handed out and not told yet
        self._settings: deque[tuple[Optimizer, ...]] = deque()

    def rest(self) -> "Iterable[tuple[torch.Tensor, ...]]":
        """The batches that it has not trained on; it has ended, or will never begin."""
        return self._stream.remaining()

    def train(self, task: Task, *, traced: Traced, go_over: GoOver, go_back: GoOver) -> History:
        """Train on all batches.

        Parameters
        ----------
        task
            Of the handle: shows the progress, and says when to end.
        traced
            Makes a trace of steps.
        go_over, go_back
            Bring the run to another plan, of the adapter's choice or for devices that are back.

        Raises
        ------
        UserError
            The data has no batch.
        """
        engine, self._task = self._engine, task
        self._total = self._count()
        with engine.boundary():
            self._begin()
            self._first, before = engine.next_step, engine.history
        self._n_reported = self._epoch_begun = self._first
        self._watchers.begin(self._first)
        last = None if self._total is None else self._first + self._total
        if self._deadline_s is not None:
            self._minders.append(Pacing(engine, last, self._deadline_s, go_over))
        elif self._adapt:
            self._minders.append(Adapting(engine, last, traced, go_over))
        if engine.is_protected and self._deadline_s is None:
            self._minders.append(Rejoin(engine, go_back))
        try:
            engine.notify, engine.last_step = self._notify, last
            self._take_all()
        finally:
            try:
                if engine.failed is None:
                    self._go_on(0)
            finally:
                engine.notify, engine.last_step = lambda text: None, None
                for minder in self._minders:
                    minder.stop()
        news = engine.history.since(before, self._first - engine.first_step)
        if self._n_reported == self._first and not news.notes and not self._first_epoch:
            raise UserError(
                "there is nothing to train on: the data has no batch.",
                next_step="With drop_last, a DataLoader leaves out a batch that is not full.",
            )
        return news

    def _count(self) -> int | None:
        """Steps that it will take, where that is known."""
        engine = self._engine
        n_batches = batches.count(
            self._data, engine.compiled_plan.plan.batch, engine.model.arguments
        )
        if not n_batches:
            return None
        at, n_steps = self._stream.position, -(-n_batches // self._accumulate)
        begun = -(-at.n_batches // self._accumulate)
        return max(0, (self._epochs - at.epoch) * n_steps - begun) or None

    def _begin(self) -> None:
        """Take over what is asked of the rule of its steps."""
        engine = self._engine
        before = in_use(engine)
        begun = has_begun(engine)
        source = self.request.over(engine.model, before, has_begun=begun)
        is_new = source.torchs is not None and source.torchs is not before.torchs
        afresh = is_new and begun and not self._resumes
        self._source = source
        if source.update != engine.compiled_plan.optimizer or afresh:
            surviving(engine, lambda: self._take(source, afresh=afresh))
        engine.source = source
        if engine.resumed_schedule is not None and not source.is_scheduled:
            engine.note(
                f"the saved run had a schedule of its rates ({engine.resumed_schedule.name}); this "
                "one has none."
            )
        saved = engine.resumed_schedule or (before.place if self._resumes else None)
        stood = engine.positions.get(engine.next_step, self._stream.position)
        source.catch_up(engine.next_step, self._stream.position.epoch, saved, stood=stood.epoch)
        engine.resumed_schedule = None
        self._place()

    def _take(self, source: UpdateSource, *, afresh: bool = False) -> None:
        """Go on with another rule: what was kept for the one before may be of no use to it."""
        engine = self._engine
        if source.update != engine.compiled_plan.optimizer or afresh:
            plan = engine.compiled_plan.plan
            engine.renew(plan, source.update, self._sizes(source.update), afresh=afresh)
        if engine.protection is not None:
            engine.protect()

    def _sizes(self, update: Update) -> Sequence[int]:
        """Rows that there should be programs for: those of so many steps in a row, or none of those
        that one step would not have.
        """
        engine, late = self._engine, update.one_step_late
        before = engine.compiled_plan.optimizer
        if before is not None and before.one_step_late == late:
            return engine.sizes
        batch = engine.compiled_plan.plan.batch
        single = [rows for rows in engine.sizes if rows < batch]
        return single if late is None else [*single, late * batch]

    def _place(self) -> None:
        """The next step begins there in the data; what nobody goes back to is forgotten."""
        engine = self._engine
        kept = engine.protection
        oldest = kept.snapshot.step if kept is not None else engine.step
        engine.positions = {n: at for n, at in engine.positions.items() if n >= oldest}
        engine.positions[engine.next_step] = self._stream.position
        engine.schedules = {n: at for n, at in engine.schedules.items() if n >= oldest}
        engine.schedules[engine.next_step] = in_use(engine).place

    def _take_all(self) -> None:
        """Every batch, until somebody has had enough."""
        while not (self._stream.is_over or self._watchers.stopped):
            self._task.check()
            if (batch := self._stream.next()) is None:
                self._epoch_over()
            else:
                self._go_on(IN_FLIGHT - 1, batch)
                self._watchers.between_steps(self._engine.next_step)

    def _epoch_over(self) -> None:
        """All its batches were handed out: wait for them."""
        engine, epoch = self._engine, self._stream.position.epoch - 1
        assert self._source is not None
        self._source.epoch_over(epoch)
        self._place()
        self._go_on(0)
        since = self._epoch_begun - engine.first_step
        self._watchers.epoch_over(epoch, engine.history.since(engine.history, since))
        self._epoch_begun = self._n_reported

    def _go_on(self, max_in_flight: int, batch: "tuple[torch.Tensor, ...] | None" = None) -> None:
        """Hand out a batch, and collect steps until at most so many are under way."""
        engine = self._engine
        with engine.boundary():
            if engine.protection is not None:
                surviving(engine, lambda: keep_protected(engine))
            if batch is not None:
                self._hand_out(batch)
            while engine.n_in_flight > max_in_flight:
                surviving(engine, engine.collect)
            for minder in self._minders:
                minder.look()
            # a switch may have collected some, too
            history = engine.history
        for number in range(self._n_reported - engine.first_step, len(history.losses)):
            self._n_reported += 1
            n_done, loss = self._n_reported - self._first, history.losses[number]
            done_frac = n_done / self._total if self._total else 0.0
            self._task.update(done_frac, f"step {self._n_reported}, loss {loss:.4g}")
            settings = self._settings.popleft()
            self._watchers.step_over(self._n_reported, metrics_of(history, number, settings))

    def _hand_out(self, batch: "tuple[torch.Tensor, ...]") -> None:
        """One step, with the settings of the optimizer that it is to be taken with."""
        engine, source = self._engine, self._source
        assert source is not None
        # callbacks, a loader and whoever waits for the fit may have changed what the trace has read
        engine.model.check_as_traced(train=True, constants=engine.loss_constants, quick=True)
        number = engine.next_step
        dtypes = {parameter.dtype for parameter in engine.model.trained}
        settings = [source.settings(number, dtypes)]
        for later in range(number + 1, number + self._n_steps(len(batch[0]))):
            source.step_over(later - 1)
            settings.append(source.settings(later, dtypes))
        if changed := set[str]().union(*map(source.changed, settings)):
            source.rate(changed, sum(settings, ()))
            surviving(engine, lambda: self._take(source))
        self._settings += settings
        rates = [row for each in settings if (row := source.rates(each)) is not None]
        surviving(engine, self._once(batch, rates))
        source.step_over(engine.next_step - 1)

    def _n_steps(self, rows: int) -> int:
        """That are taken on what is handed out at once."""
        plan = self._engine.compiled_plan.plan
        if self.request.one_step_late is None:
            return 1
        if plan.batch != self._batch:
            raise PlanError(
                f"the run went over to a plan whose steps have {plan.batch} rows, not "
                f"{self._batch}; those of a fit with one_step_late= stay as they are.",
                next_step="Begin another fit.",
            )
        return -(-rows // plan.batch)

    def _once(
        self, batch: "tuple[torch.Tensor, ...]", rates: "Sequence[torch.Tensor]"
    ) -> Callable[[], None]:
        """Hand out this batch; a recovery in between may have done it already."""
        engine, number = self._engine, self._engine.next_step

        def hand_out() -> None:
            if engine.next_step == number:
                engine.submit(batch, rates)
            self._stream.done()
            self._place()

        return hand_out

    def _notify(self, text: str) -> None:
        self._task.check()
        self._task.update(self._task.progress[0], text)


def adapts(
    plan: Plan,
    problem: Problem | None,
    adapt: bool | None,
    deadline_s: float | None,
    *,
    is_late: bool = False,
) -> bool:
    """Whether a run adapts, where this was asked for.

    Parameters
    ----------
    plan
        In force.
    problem
        Of the run; None without a profile.
    adapt, deadline_s
        As for `Run.fit`.
    is_late
        Updates come late: what its steps should take is not predicted one by one.

    Raises
    ------
    UserError
        That cannot be asked for.
    """
    check_flags(adapt=adapt, or_none=True)
    if is_late and (adapt or deadline_s is not None):
        raise UserError(
            "plans change by what a step takes, and steps whose updates come late are in each "
            "other's time.",
            next_step="Leave out adapt= and deadline_s=, or one_step_late=.",
        )
    if deadline_s is not None:
        if adapt:
            raise UserError("a deadline chooses the plans: adapt=True is not for it.")
        seconds = number_of(deadline_s)
        if seconds is None or not seconds > 0 or not isfinite(seconds):
            raise UserError(f"deadline_s is a number of seconds to come, got {deadline_s!r:.60}.")
    if (adapt or deadline_s is not None) and problem is None:
        raise UserError(
            "a run adapts by what its profile predicts, and there is none.",
            next_step="Use home.profile(model) before home.deploy.",
        )
    if adapt is None and deadline_s is None:
        return problem is not None and len(plan.devices) > 1 and not is_late
    return bool(adapt)
