"""Run: a deployed plan. Train with `fit`, call it for outputs, `switch` it live, `save` it, look at its `trace`."""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import FileError, PlanError, PotluckError, UserError
from potluck.handle import Handle, Task
from potluck.plan.cost import energy_j
from potluck.records import Device, Plan, Trace
from potluck.run import checkpoint, tensors
from potluck.run.crew import Crew, loss_of, outputs_of, states_of
from potluck.run.edition import (
    INFER,
    PULL,
    PUSH,
    Edition,
    evaluation_plan,
    make_edition,
    renamed,
    train_name,
    usable_rows,
)
from potluck.run.events import Execution
from potluck.run.history import Comparison, History, measured_trace
from potluck.run.link import Link
from potluck.run.members import Members
from potluck.run.optimizers import AdamW, Optimizer
from potluck.schedule import Compiled, compile_move
from potluck_wire.messages import Reading

if TYPE_CHECKING:
    import torch

IN_FLIGHT = 2  # steps handed out: the feeds of the next travel while this one computes
REQUESTS_IN_FLIGHT = 4
KEPT_STEPS = 64
EVALUATION_ROWS = 32


class Run:
    """A plan at work on its devices; made by `home.deploy`."""

    def __init__(
        self, crew: Crew, members: Members, model: Any, *, predict: Callable[[Plan], Trace] | None, profile: Any
    ) -> None:
        self._crew, self._members, self._model = crew, members, model
        self._predict, self._profile = predict, profile
        self._lock = threading.RLock()  # held at step boundaries and by whatever needs one
        self._edition: Edition
        self._step = self._n_calls = 0
        self._in_flight: deque[tuple[Future[Execution], Compiled, int]] = deque()
        self._kept: deque[tuple[Execution, Compiled]] = deque(maxlen=KEPT_STEPS)
        self._history = History()
        self._failed: PotluckError | None = None
        self._evaluation: tuple[int, Run] | None = None  # at which step its weights were taken

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._edition.plan

    @property
    def step(self) -> int:
        """Steps of training done so far."""
        return self._step

    @property
    def history(self) -> History:
        """Losses of all steps so far."""
        return self._history

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """What the plan needs on each device."""
        return {device: self._edition.memory_bytes(device) for device in self.plan.devices}

    @property
    def readings(self) -> Mapping[str, Reading]:
        """The latest power reading of each device."""
        found = {name: self._members[name].reading for name in self.plan.devices if name in self._members}
        return {name: reading for name, reading in found.items() if reading is not None}

    @property
    def trace(self) -> Trace:
        """What the last steps (or requests) did, measured; energy is modelled where no meter says more."""
        return measured_trace(tuple(self._kept), self._devices(), energy_j)

    @property
    def predicted(self) -> Trace | None:
        """What the simulator expects of one step; None without a profile."""
        return self._predict(self.plan) if self._predict else None

    def compare(self) -> Comparison:
        """Predicted against measured, medians over the last steps.

        Raises
        ------
        UserError
            Where nothing was predicted or measured yet.
        """
        predicted, measured = self.predicted, self.trace
        if predicted is None or not measured.step_s:
            raise UserError("there is nothing to compare yet.", next_step="Profile the model, and run some steps.")
        n = len(measured.step_s)
        middle = sorted(measured.step_s)[n // 2]
        return Comparison(
            predicted_step_s=predicted.step_s[0],
            measured_step_s=middle,
            busy_s={d: (predicted.busy_s.get(d, 0.0), busy / n) for d, busy in measured.busy_s.items()},
            energy_j={d: (predicted.energy_j.get(d, 0.0), joules / n) for d, joules in measured.energy_j.items()},
        )

    def _devices(self) -> dict[str, Device]:
        return {device.name: device for device in self._profile.devices} if self._profile is not None else {}

    def __repr__(self) -> str:
        what = f"{self._step} steps" if self.plan.training else f"{self._n_calls} requests"
        state = f", failed: {self._failed}" if self._failed else ""
        return f"<Run of {self.plan.model} on {', '.join(self.plan.devices)}, {what}{state}>"

    # --- training -----------------------------------------------------------------------------------------------------

    def fit(
        self, data: Any, epochs: int = 1, *, optimizer: Optimizer | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> Handle[History]:  # fmt: skip
        """Train on every batch of `data`, `epochs` times.

        Parameters
        ----------
        data
            A DataLoader (or any iterable of batches: inputs, then targets), or one tuple of tensors to be taken
            `plan.batch` rows at a time. A last batch that is smaller is trained on with the mean over its own rows.
        optimizer
            Default: the one in use.
        on_step
            Called with (step, loss) after each step, in the background thread.
        """
        self._check(training=True)
        return Handle(lambda task: self._fit(task, data, epochs, optimizer, on_step), f"training {self.plan.model}")

    def _fit(
        self,
        task: Task,
        data: Any,
        epochs: int,
        optimizer: Optimizer | None,
        on_step: Callable[[int, float], None] | None,
    ) -> History:
        first = self._step + len(self._in_flight)
        n_batches = tensors.count(data, self.plan.batch)
        total = epochs * n_batches if n_batches else None
        if optimizer is not None and optimizer != self._edition.optimizer:
            with self._lock:
                self._renew(self.plan, optimizer, self._sizes())

        def collect(most: int) -> None:
            while len(self._in_flight) > most:
                loss = self._collect()
                done = self._step - first
                task.update(done / total if total else 0.0, f"step {self._step}, loss {loss:.4g}")
                if on_step is not None:
                    on_step(self._step, loss)

        try:
            for _ in range(epochs):
                for batch in tensors.batches(data, self.plan.batch):
                    task.check()
                    with self._lock:
                        self._submit(batch)
                        collect(IN_FLIGHT - 1)
            return self._since(first)
        finally:
            with self._lock:
                if self._failed is None:
                    collect(0)

    def _since(self, first: int) -> History:
        with self._lock:
            while self._in_flight:
                self._collect()
        whole, start = self._history, len(self._history.losses) - (self._step - first)
        return replace(whole, losses=whole.losses[start:], rows=whole.rows[start:], step_s=whole.step_s[start:])

    def _submit(self, batch: "tuple[torch.Tensor, ...]") -> None:
        """Hand out one step; the programs for its number of rows are made and loaded where they are new."""
        self._check(training=True)
        rows = self._model.check_inputs(*batch, train=True)
        usable = rows if rows == self.plan.batch else usable_rows(self.plan, rows)
        if usable < rows:
            note = f"{rows - usable} of {rows} rows of a batch were left out: they cannot be shared evenly."
            self._history = replace(self._history, notes=(*self._history.notes, note))
            if not usable:
                return
            batch = tuple(tensor[:usable] for tensor in batch)
        name = train_name(usable, self.plan)
        if name not in self._edition.compiled:
            self._renew(self.plan, self._edition.optimizer, (*self._sizes(), usable))
        compiled = self._edition.compiled[name]
        named = {port.name: tensor for port, tensor in zip(self._model.inputs(True), batch, strict=True)}
        step = self._step + len(self._in_flight)
        future = self._crew.execute(self._edition.epoch, compiled, step, batch=named, serial=True)
        self._in_flight.append((future, compiled, usable))

    def _collect(self) -> float:
        """Wait for the oldest step; returns its loss."""
        future, compiled, rows = self._in_flight.popleft()
        execution = self._result(future)
        loss = loss_of(execution, compiled)
        self._step += 1
        self._kept.append((execution, compiled))
        h = self._history
        seconds = execution.stop_s - execution.start_s
        self._history = replace(h, losses=(*h.losses, loss), rows=(*h.rows, rows), step_s=(*h.step_s, seconds))
        return loss

    def _result(self, future: "Future[Execution]") -> Execution:
        try:
            return future.result()
        except PotluckError as error:
            self._failed = error
            self._in_flight.clear()
            self._crew.drop()
            raise

    def _sizes(self) -> tuple[int, ...]:
        names = [name for name in self._edition.compiled if name.startswith("train-")]
        return tuple(int(name.removeprefix("train-")) for name in names)

    def _check(self, *, training: bool | None = None) -> None:
        if self._failed is not None:
            raise type(self._failed)(
                f"this run has ended: {self._failed}", next_step="Deploy again; a saved run can be resumed."
            ) from self._failed
        if training and not self.plan.training:
            raise PlanError("this plan is for inference.", next_step="Plan with potluck.Training(...) to train.")

    # --- switching ----------------------------------------------------------------------------------------------------

    def switch(self, plan: Plan) -> "Handle[Run]":
        """Go over to another plan at the next step boundary, with all state; on any failure the old plan stands."""
        self._check()
        if plan.training != self.plan.training:
            raise PlanError("a run for training cannot become one for inference, nor the other way round.")

        def work(task: Task) -> "Run":
            with self._lock:
                task.check()
                self._renew(plan, self._edition.optimizer, ())
            return self

        return Handle(work, f"switching {plan.model}")

    def _renew(self, plan: Plan, optimizer: Optimizer | None, sizes: Iterable[int]) -> None:
        """The next edition: prepared everywhere, state moved from device to device, then committed."""
        while self._in_flight:
            self._collect()
        self._check()
        old = self._edition
        fitting = tuple(rows for rows in dict.fromkeys(sizes) if rows != plan.batch and usable_rows(plan, rows) == rows)
        new = make_edition(
            self._model, plan, run=old.run, epoch=old.epoch + 1, optimizer=optimizer, sizes=fitting, seed=old.seed
        )
        keeps = optimizer is not None and old.optimizer is not None and type(optimizer) is type(old.optimizer)
        with_moments = plan.training and self._step > 0 and keeps and _same_state(optimizer, old.optimizer)
        move = compile_move(
            old.plan, old.segments, old.states(optimizer=with_moments), old.epoch,
            plan, new.segments, new.states(optimizer=with_moments),
        )  # fmt: skip
        active = any(program.instructions for program in move.programs.values())
        self._prepare_and_move(old, new, move if active else None)
        self._edition = new
        left = [device for device in old.plan.devices if device not in plan.devices]
        self._crew.drop(-1, left)

    def _prepare_and_move(self, old: Edition, new: Edition, move: Compiled | None) -> None:
        devices = self._crew.prepare(new, move, old.plan.devices)
        try:
            if move is not None:
                self._crew.execute(new.epoch, renamed(move, "move"), self._step).result()
            self._crew.commit(new.epoch, devices)
        except PotluckError:
            self._crew.drop(new.epoch, devices)
            raise

    # --- inference ----------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: "torch.Tensor") -> Any:
        """The model's outputs for these inputs, any number of rows; of a training run, with the weights of now.

        One tensor where the model has one output, else a tuple.
        """
        self._check()
        if self.plan.training:
            return self._evaluating()(*inputs)
        rows = self._model.check_inputs(*inputs)
        ports = self._model.inputs()
        compiled, batch = self._edition.compiled[INFER], self.plan.batch
        waiting: deque[tuple[Future[Execution], int]] = deque()
        parts: list[dict[str, torch.Tensor]] = []

        def collect() -> None:
            future, wanted = waiting.popleft()
            execution = self._result(future)
            self._kept.append((execution, compiled))
            parts.append({name: _first_rows(t, wanted, batch) for name, t in outputs_of(execution, compiled).items()})

        for start in range(0, rows, batch):
            wanted = min(batch, rows - start)
            named = {p.name: _padded(t[start : start + wanted], batch) for p, t in zip(ports, inputs, strict=True)}
            with self._lock:
                number = self._n_calls
                self._n_calls += 1
            waiting.append((self._crew.execute(self._edition.epoch, compiled, number, batch=named), wanted))
            if len(waiting) >= REQUESTS_IN_FLIGHT:
                collect()
        while waiting:
            collect()
        return _joined(parts, [tensor.name for tensor in self._edition.segments[-1].outputs])

    def _evaluating(self) -> "Run":
        """A run for inference with the weights of this step, on (about) the same devices."""
        with self._lock:
            while self._in_flight:
                self._collect()
            if self._evaluation is None:
                plan = evaluation_plan(self._model, self.plan, EVALUATION_ROWS)
                inner = _open(self._crew.link, self._members, self._model, plan, None, 0, self._predict, self._profile)
                self._evaluation = (-1, inner)
            step, inner = self._evaluation
            if step != self._step:
                inner._push(self.state_dict())
                self._evaluation = (self._step, inner)
            return inner

    def evaluate(self, data: Any, score: "Callable[..., Any]") -> float:
        """The mean over rows of `score(outputs, *targets)`, which is a mean over the rows of one batch."""
        n_inputs, total, seen = len(self._model.inputs()), 0.0, 0
        for batch in tensors.batches(data, EVALUATION_ROWS * REQUESTS_IN_FLIGHT):
            outputs = self(*batch[:n_inputs])
            rows = int(batch[0].shape[0])
            total += float(score(outputs, *batch[n_inputs:])) * rows
            seen += rows
        if not seen:
            raise UserError("there is nothing to evaluate: the data has no batch.")
        return total / seen

    # --- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """All weights and buffers as they are on the devices now, by name."""
        self._check()
        if not self.plan.training:
            return dict(self._model.state())
        with self._lock:
            while self._in_flight:
                self._collect()
            return {**self._model.state(), **self._pull(PULL)}

    def load_into(self, module: Any = None) -> None:
        """Bring the weights back into a module (default: the one that the model was made from)."""
        state = self.state_dict()
        if module is None:
            self._model.load_state(state)
        else:
            module.load_state_dict(state, strict=False)

    def save(self, path: str | Path) -> None:
        """Write weights, optimizer state, step, seed and plan to one file: `home.deploy(plan, resume=path)` goes on."""
        self._check(training=True)
        with self._lock:
            while self._in_flight:
                self._collect()
            edition = self._edition
            assert edition.optimizer is not None
            saved = checkpoint.Checkpoint(
                signature=self._model.signature, plan=edition.plan, optimizer=edition.optimizer, step=self._step,
                seed=edition.seed, weights=self.state_dict(),
                moments=self._pull(f"{PULL}-optimizer") if self._step else {},
            )  # fmt: skip
        checkpoint.save(Path(path), saved)

    def _pull(self, program: str) -> "dict[str, torch.Tensor]":
        compiled = self._edition.compiled.get(program)
        if compiled is None:
            return {}
        self._n_calls += 1
        execution = self._result(self._crew.execute(self._edition.epoch, compiled, self._n_calls))
        return states_of(execution, compiled)

    def _push(self, states: "Mapping[str, torch.Tensor]", program: str = PUSH) -> None:
        compiled = self._edition.compiled.get(program)
        if compiled is None:
            return
        self._n_calls += 1
        self._result(self._crew.execute(self._edition.epoch, compiled, self._n_calls, states=states))

    def close(self) -> None:
        """End the run: its devices forget it."""
        if self._evaluation is not None:
            self._evaluation[1].close()
            self._evaluation = None
        self._crew.drop()
        self._failed = self._failed or UserError("it was closed.")


def deploy(
    link: Link, members: Members, model: Any, plan: Plan, task: Task, *, optimizer: Optimizer | None = None,
    seed: int = 0, resume: str | Path | None = None, predict: Callable[[Plan], Trace] | None = None,
    profile: Any = None,
) -> Run:  # fmt: skip
    """Load `plan` on its devices with the model's weights, or those of a saved run."""
    saved = None
    if resume is not None:
        task.update(0.0, "reading the saved run")
        saved = checkpoint.load(Path(resume))
        if saved.signature != model.signature:
            raise FileError(f"{resume} was saved from another model.", path=str(resume))
        optimizer, seed = optimizer or saved.optimizer, saved.seed
    chosen = (optimizer or AdamW()) if plan.training else None
    task.update(0.1, "loading the plan")
    run = _open(link, members, model, plan, chosen, seed, predict, profile)
    try:
        task.update(0.5, "sending weights")
        run._push(saved.weights if saved else model.state())
        if saved is not None and saved.moments and chosen is not None:
            if not _same_state(chosen, saved.optimizer):
                raise FileError(f"{resume} holds the state of another optimizer.", path=str(resume))
            run._push(saved.moments, f"{PUSH}-optimizer")
        run._step = saved.step if saved else 0
        run._crew.meter()
    except BaseException:
        run.close()
        raise
    return run


def _open(
    link: Link, members: Members, model: Any, plan: Plan, optimizer: Optimizer | None, seed: int,
    predict: Callable[[Plan], Trace] | None, profile: Any,
) -> Run:  # fmt: skip
    """Prepare and commit the first edition."""
    members.need(plan.devices)
    name = f"run-{uuid.uuid4().hex[:12]}"
    edition = make_edition(model, plan, run=name, epoch=0, optimizer=optimizer, seed=seed)
    crew = Crew(link, members, name)
    run = Run(crew, members, model, predict=predict, profile=profile)
    devices = crew.prepare(edition)
    crew.commit(0, devices)
    run._edition = edition
    return run


def _same_state(one: Optimizer | None, other: Optimizer | None) -> bool:
    return one is not None and other is not None and one.state_names("") == other.state_names("")


def _padded(tensor: "torch.Tensor", rows: int) -> "torch.Tensor":
    """The tensor with its last row repeated up to `rows`: outputs of the extra rows are thrown away."""
    import torch

    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor


def _first_rows(tensor: "torch.Tensor", wanted: int, batch: int) -> "torch.Tensor":
    return tensor if wanted == batch or not tensor.ndim else tensor[: tensor.shape[0] // batch * wanted]


def _joined(parts: "list[dict[str, torch.Tensor]]", names: list[str]) -> Any:
    import torch

    joined = [parts[0][name] if len(parts) == 1 else torch.cat([part[name] for part in parts]) for name in names]
    return joined[0] if len(joined) == 1 else tuple(joined)
