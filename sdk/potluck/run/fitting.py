"""One call of `fit`: its batches go out one after the other, and it tells of their losses."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.handle import Task
from potluck.records import Plan, Problem, Trace
from potluck.run import batches
from potluck.run.adapting import Adapting
from potluck.run.background_snapshot import keep_protected
from potluck.run.engine import Engine
from potluck.run.history import History
from potluck.run.optimizers import Optimizer
from potluck.run.pacing import Pacing
from potluck.run.recovery import surviving
from potluck.run.rejoin import Rejoin
from potluck.schedule import Compiled
from potluck.sessions.events import Execution
from potluck.simulate.predict import IN_FLIGHT

if TYPE_CHECKING:
    import torch

OnStep = Callable[[int, float], None]
GoOver = Callable[[Plan, Task], None]
Traced = Callable[[Sequence[tuple[Execution, Compiled]]], Trace]


class Fitting:
    """It waits for its turn, trains, and may be ended before all is done.

    Parameters
    ----------
    engine
        Of the run.
    data, epochs, optimizer, on_step, adapt, deadline_s
        As for `Run.fit`.
    """

    def __init__(
        self,
        engine: Engine,
        data: Any,
        epochs: int,
        *,
        optimizer: Optimizer | None,
        on_step: OnStep | None,
        adapt: bool,
        deadline_s: float | None,
    ) -> None:
        self._engine, self._data, self._epochs = engine, data, epochs
        self.optimizer = optimizer
        self._on_step, self._adapt, self._deadline_s = on_step, adapt, deadline_s
        self._task = Task()
        self._stream = batches.Stream(
            data, engine.edition.plan.batch, engine.model.arguments, epochs
        )
        self._total: int | None = None
        self._minders: list[Adapting | Pacing | Rejoin] = []  # what else looks at its steps
        self._first = self._told = 0

    def rest(self) -> "Iterable[tuple[torch.Tensor, ...]]":
        """The batches that it has not trained on; it has ended, or will never begin."""
        return self._stream.rest()

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
        engine, self._task, optimizer = self._engine, task, self.optimizer
        n_batches = batches.count(self._data, engine.edition.plan.batch, engine.model.arguments)
        self._total = self._epochs * n_batches if n_batches else None
        with engine.boundary():
            if optimizer is not None and optimizer != engine.edition.optimizer:
                surviving(engine, lambda: self._take(optimizer))
            self._first, before = engine.next_step, engine.history
        self._told = self._first
        last = None if self._total is None else self._first + self._total
        if self._deadline_s is not None:
            self._minders.append(Pacing(engine, last, self._deadline_s, go_over))
        elif self._adapt:
            self._minders.append(Adapting(engine, last, traced, go_over))
        if engine.is_protected and self._deadline_s is None:
            self._minders.append(Rejoin(engine, go_back))
        try:
            engine.say, engine.last_step = self._say, last
            while True:
                task.check()
                if (batch := self._stream.next()) is None:
                    break
                self._go_on(IN_FLIGHT - 1, batch)
        finally:
            try:
                if engine.failed is None:
                    self._go_on(0)
            finally:
                engine.say, engine.last_step = lambda text: None, None
                for minder in self._minders:
                    minder.stop()
        news = engine.history.since(before, self._first - engine.first_step)
        if self._told == self._first and not news.notes:
            raise UserError(
                "there is nothing to train on: the data has no batch.",
                next_step="With drop_last, a DataLoader leaves out a batch that is not full.",
            )
        return news

    def _take(self, optimizer: Optimizer) -> None:
        """Go on with another optimizer: what is kept of the one before is of no use to it."""
        engine = self._engine
        if optimizer != engine.edition.optimizer:
            engine.renew(engine.edition.plan, optimizer, engine.sizes)
        if engine.protection is not None:
            engine.protect()

    def _go_on(self, most: int, batch: "tuple[torch.Tensor, ...] | None" = None) -> None:
        """Hand out a batch, and collect steps until at most so many are under way."""
        engine = self._engine
        with engine.boundary():
            if engine.protection is not None:
                surviving(engine, lambda: keep_protected(engine))
            if batch is not None:
                surviving(engine, self._once(batch))
            while engine.n_in_flight > most:
                surviving(engine, engine.collect)
            for minder in self._minders:
                minder.look()
            # a switch may have collected some, too
            news = engine.history.losses[self._told - engine.first_step :]
        for loss in news:
            self._told += 1
            n_done = self._told - self._first
            done_frac = n_done / self._total if self._total else 0.0
            self._task.update(done_frac, f"step {self._told}, loss {loss:.4g}")
            if self._on_step is not None:
                self._on_step(self._told, loss)

    def _once(self, batch: "tuple[torch.Tensor, ...]") -> Callable[[], None]:
        """Hand out this batch; a recovery in between may have done it already."""
        engine, number = self._engine, self._engine.next_step

        def hand_out() -> None:
            if engine.next_step == number:
                engine.submit(batch)
            self._stream.done()

        return hand_out

    def _say(self, text: str) -> None:
        self._task.check()
        self._task.update(self._task.progress[0], text)


def adapts(
    plan: Plan, problem: Problem | None, adapt: bool | None, deadline_s: float | None
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

    Raises
    ------
    UserError
        That cannot be asked for.
    """
    if deadline_s is not None:
        if adapt:
            raise UserError("a deadline chooses the plans: adapt=True is not for it.")
        if isinstance(deadline_s, bool) or not deadline_s > 0 or not isfinite(deadline_s):
            raise UserError(f"deadline_s is a number of seconds to come, got {deadline_s!r}.")
    if (adapt or deadline_s is not None) and problem is None:
        raise UserError(
            "a run adapts by what its profile predicts, and there is none.",
            next_step="Use home.profile(model) before home.deploy.",
        )
    if adapt is None and deadline_s is None:
        return problem is not None and len(plan.devices) > 1
    return bool(adapt)
