"""Run: a deployed plan. Train with `fit`, call it for outputs, `switch` it live, `save` it, look at
its `trace`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.adapt.adapter import Decision
from potluck.argument_checks import check_flags
from potluck.errors import PlanError, PotluckError, UserError
from potluck.graph.torch.autocast import check_autocast
from potluck.graph.torch.state_names import check_shapes
from potluck.graph.traced import MAX_SIZE
from potluck.graph.values import check_as_sent
from potluck.handle import Handle, Task
from potluck.profile.from_runs import learned
from potluck.records import Plan, Problem, Trace
from potluck.run import batches, checkpoint, tensors
from potluck.run.adapting import Adapting
from potluck.run.batch_stream import check_accumulate, check_iterable
from potluck.run.callbacks import FitCallbacks, OnEpoch, OnStep, Watchers
from potluck.run.comparison import Comparison, compare
from potluck.run.compiled_plan import INFER, evaluation_plan, train_name
from potluck.run.drain import Drain
from potluck.run.engine import RunEngine
from potluck.run.evaluation import Evaluation
from potluck.run.fit_call import FitCall, adapts
from potluck.run.fits import Fits, nothing_under_way, remaining_batches
from potluck.run.history import History, measured_trace
from potluck.run.live_status import LiveStatus, Watched, glance
from potluck.run.live_weights import LiveWeights
from potluck.run.migration import cross
from potluck.run.recovery import see_all, surviving
from potluck.run.requests import REQUESTS_IN_FLIGHT, answers
from potluck.run.resume_parts import ResumeParts
from potluck.run.run_file import all_state, checkpoint_of, position_of
from potluck.run.scoring import arguments_of, evaluated
from potluck.run.snapshots import Protection
from potluck.run.state_transfer import DeployedWeights
from potluck.run.text.writes import Writes
from potluck.run.update_source import STEP, UpdateRequest, has_begun, in_use
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.sessions.link import SessionLink
from potluck.simulate.equations import energy_j
from potluck.simulate.predict import predict_steps
from potluck.simulate.time_spans import most_at_once
from potluck_wire.messages import Reading

if TYPE_CHECKING:
    import torch

    from potluck.profile.profiles import Profile

EVALUATION_ROWS = 32


class Run(Watched, Writes):
    """A plan at work on its devices; made by `home.deploy`."""

    def __init__(self, engine: RunEngine, link: SessionLink) -> None:
        super().__init__()
        self._engine, self._link = engine, link
        self.live_weights = LiveWeights(engine)  # read and replaced between two steps
        self.hand_over: Callable[..., Handle[Any]] | None = None  # of its home
        self._drain: Drain | None = None
        self._evaluation: Evaluation | None = None
        self._fits = Fits()

    def watch_devices(self) -> None:
        """From now on it moves elsewhere where devices want to leave."""
        self._drain = Drain(self._engine, self._forget_evaluation)
        self._engine.members.watch(self._drain)
        self._drain.look()

    # --- what it is -------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._engine.compiled_plan.plan

    @property
    def deployed(self) -> DeployedWeights:
        """How much was put onto its devices at first, and how much of it they had kept."""
        return self._engine.state.deployed

    @property
    def signature(self) -> str:
        """The signature of its model."""
        return str(self._engine.model.signature)

    @property
    def step(self) -> int:
        """Steps of training done so far."""
        return self._engine.step

    @property
    def history(self) -> History:
        """Losses of all steps so far."""
        return self._engine.history

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What a `fit` that adapts or holds a deadline has decided so far, and why."""
        return self.history.decisions

    @property
    def parts(self) -> ResumeParts:
        """What somebody else needs to go on with it, beside its state."""
        engine = self._engine
        kept = engine.protection
        return ResumeParts(
            model=engine.model,
            profile=engine.compiler.profile,
            constants=engine.loss_constants,
            protect=(kept.every if kept is not None and kept.is_exact else None)
            or engine.is_protected,
            patience_s=engine.patience_s,
            recovery=engine.recovery,
        )

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """What the plan needs on each device."""
        needed_bytes = self._engine.compiled_plan.memory_bytes
        return {device: needed_bytes(device) for device in self.plan.devices}

    @property
    def readings(self) -> Mapping[str, Reading]:
        """The latest power reading of each device."""
        members = self._engine.members
        found = {name: members[name].reading for name in self.plan.devices if name in members}
        return {name: reading for name, reading in found.items() if reading is not None}

    @property
    def glance(self) -> LiveStatus:
        """What whoever watches it sees of it now."""
        return glance(self._engine, self._traced, bool(self._fits.under_way))

    @property
    def measured(self) -> bool:
        """Whether any step or request was measured yet."""
        return bool(self._engine.kept)

    @property
    def trace(self) -> Trace:
        """What the last steps (or requests) did, measured.

        Energy by meters, else modelled from busy and radio time.
        """
        return self._traced(tuple(self._engine.kept))

    def _traced(self, steps: "Sequence[tuple[ExecutionResult, Compiled]]") -> Trace:
        profile, members = self._engine.compiler.profile, self._engine.members
        known = {device.name: device for device in profile.devices} if profile else {}
        metered = {name: members[name].metered for name in self.plan.devices if name in members}
        return measured_trace(steps, known, energy_j, metered)

    @property
    def problem(self) -> Problem | None:
        """The planning problem that this run solves; None without a profile."""
        return self._engine.compiler.problem(self._engine.compiled_plan)

    @property
    def predicted(self) -> Trace | None:
        """What the simulator expects of these very programs: some steps, or one request.

        None without a profile.

        Steps on the plan's batch, unless all that were taken had another number of rows: then of
        the latest.
        """
        problem, alike = self.problem, self._engine.alike
        name = train_name(self.plan.batch, self.plan) if self.plan.training else INFER
        compiled = alike[-1][1] if alike else self._engine.compiled_plan.compiled[name]
        spans = [(execution.start_s, execution.stop_s) for execution, _ in self._engine.kept]
        return predict_steps(compiled, problem, most_at_once(spans)) if problem else None

    def compare(self) -> Comparison:
        """Predicted against measured: steps, devices, transfers, and which term the difference
        comes from.

        Raises
        ------
        UserError
            Where nothing was predicted or measured yet.
        """
        predicted = self.predicted
        alike = self._engine.alike
        problem = self.problem
        if predicted is None or problem is None or not alike:
            raise UserError(
                "there is nothing to compare yet.",
                next_step="Profile the model, and run some steps.",
            )
        return compare(predicted, self._traced(alike), alike[-1][1].programs, problem.network)

    def learn(self) -> "Profile":
        """The profile after this run: layers and links take what it showed, by the rules of
        `profile.from_runs` and `profile.links_from_runs`.
        """
        compared, engine = self.compare(), self._engine
        assert engine.compiler.profile is not None  # else nothing could be compared
        steady = {
            name for name in self.plan.devices if engine.members[name].capability.get("emulated")
        }
        engine.compiler.profile = learned(
            engine.compiler.profile,
            compared.predicted,
            compared.measured,
            engine.alike[-1][1],
            training=self.plan.training,
            steady=steady,
            transfers={(each.source, each.target): each.median_s for each in compared.transfers},
        )
        return engine.compiler.profile

    def __repr__(self) -> str:
        what = f"{self.step} steps" if self.plan.training else f"{self._engine.n_requests} requests"
        state = f", ended: {self._engine.failed}" if self._engine.failed else ""
        return f"<Run of {self.plan.model} on {', '.join(self.plan.devices)}, {what}{state}>"

    # --- training ---------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        *,
        optimizer: Any = None,
        schedule: Any = None,
        schedule_every: str = STEP,
        clip_norm: float | None = None,
        norm_order: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        ema: float | None = None,
        one_step_late: int | None = None,
        on_step: OnStep | None = None,
        on_epoch: OnEpoch | None = None,
        log: Any = None,
        save_to: str | Path | None = None,
        save_every: int | timedelta | None = None,
        resume: bool = False,
        adapt: bool | None = None,
        deadline_s: float | None = None,
    ) -> Handle[History]:
        """Train on every batch of `data`, `epochs` times.

        The handle can be cancelled between two steps.

        A `fit` that is still going on comes first. A step that fails ends the run: some devices may
        have taken it already, so their weights are of no one step; what was saved can be resumed.

        Parameters
        ----------
        data
            A DataLoader (or any iterable of batches: inputs, then targets), or one tuple of tensors
            to be taken `plan.batch` rows at a time. A batch of any other size is one step, too,
            with the mean over its own rows: the plan's micro-batches and a smaller one. Where batch
            norm learns, no row that had company is alone in it. Replicas normalise their shares of
            a micro-batch each by itself. After a step, running statistics are the mean of theirs,
            weighted by the rows of the whole step that each had. Mappings, as collators make them,
            are matched by name: inputs as `forward` calls them; targets as their example or the
            loss does, and a single one as "labels" or another usual name.
        epochs
            How often to go through `data`.
        optimizer
            One of ours (`potluck.AdamW(lr)`), or of torch's for the module's parameters, with its
            groups: torch.optim.AdamW(net.parameters(), lr). Of torch's its class and settings are
            read, again for each step; devices take the steps, by its arithmetic. Default: the one
            in use, with its schedule and limits; a new one begins without.
        schedule, schedule_every
            A scheduler of `torch.optim.lr_scheduler`, which goes on with every "step" or "epoch";
            or a function from the number of a step (from 0, of the whole run) to a factor of the
            rate. After a resume, a new scheduler goes on where the saved one stood.
        clip_norm, norm_order
            The norm of all gradients together, over all devices, is this at the most, as by
            `torch.nn.utils.clip_grad_norm_`; inf: no limit. `history.gradient_norms` has them.
        clip_value
            No number of the gradients is larger, as by `clip_grad_value_`.
        accumulate
            So many batches are one step: that of all their rows.
        ema
            The decay of a moving average of the weights, which devices keep beside them:
            `run.state_dict(ema=True)`. It begins at the weights of now.
        one_step_late
            So many steps go through the pipeline without its being emptied in between, and sums
            over replicas have the time of a whole step (the asynchronous variant of DeepCEE, with
            the rule of PipeDream-2BW). **Changes the result**: each of these steps is computed,
            forward and backward and in all stages, on weights that lack the gradients of the step
            before it; these come one step late. The first of so many steps lacks none, and after
            the last one all are there. Batches have `plan.batch` rows. Weights are there twice.
            A device that is lost, or a switch, takes the run back to, or waits for, the end of such
            a row of steps. Default: no step is late.
        on_step
            Called with (step, loss) after each step, in the background thread; it may do anything
            with the run but wait for a fit, which is refused. The next step is under way by then:
            what the run tells of its weights (`state_dict`, `save`, a call) is of the step that
            `run.step` gives afterwards. Where it raises or returns `potluck.StopTraining`, the
            training ends.
        on_epoch
            Called likewise with (epoch, history of its steps) after each epoch, when no step is
            under way.
        log
            A logger or several: with log(metrics, step=), as a run of Weights & Biases has it, or
            add_scalar(name, value, step), as TensorBoard's writers. Told are the loss, the rate,
            rows, seconds, and the gradients' norm where it is limited.
        save_to, save_every
            Save the run to this file every so many steps, or every `datetime.timedelta`.
        resume
            Go on where the saved run (or a `fit` that was ended) stood in the data: what was left
            of `epochs`. The loader tells where it is, as torchdata's StatefulDataLoader does; or
            it has a generator of its own, or no random order.
        adapt
            Compare steps with their prediction, in the background; where devices or links have
            changed, order transfers anew or switch to another plan of the same micro-batches, if
            that pays. Devices that the plan in force was made without stay out. What was decided
            and why is in `run.decisions`. Needs a profile. Default: on where there is one and the
            plan has more than one device. Sums over replicas may come in another order after a
            switch, which rounds differently. Looking takes up to 2 % of the notebook's time, and as
            much of the time of a medium that no step shows.
        deadline_s
            End in so many seconds, with the least energy: plans of the same micro-batches take
            turns (Dora, 4.3), as steps show how long they take. Needs a profile with watts; takes
            the place of `adapt`. Where it comes to be late the fastest plan goes on.

        Returns
        -------
        Handle[History]
            The losses of these steps, once it is waited for.

        Raises
        ------
        UserError
            Data, epochs or deadline are not what they should be, or the data has no batch; or there
            is no profile to adapt by.
        Infeasible
            Even the fastest plan ends after the deadline; nothing was trained.
        PlanError
            The plan is for inference.
        """
        self._engine.check(training=True)
        engine = self._engine
        engine.model.check_as_traced(train=True, constants=engine.loss_constants)
        check_autocast("it is trained")
        check_flags(resume=resume)
        check_iterable(data, epochs)
        check_accumulate(accumulate, engine.compiled_plan.segments, one_step_late)
        request = UpdateRequest(
            optimizer=optimizer,
            schedule=schedule,
            schedule_every=schedule_every,
            clip_norm=clip_norm,
            norm_order=norm_order,
            clip_value=clip_value,
            ema=ema,
            one_step_late=one_step_late,
        )
        request.over(engine.model, in_use(engine), has_begun=has_begun(engine))  # it may refuse
        watching = FitCallbacks(
            on_step=on_step, on_epoch=on_epoch, log=log, save_to=save_to, save_every=save_every
        )
        fitting = FitCall(
            engine,
            data,
            epochs,
            request=request,
            watchers=Watchers(watching, self.save),
            accumulate=accumulate,
            position=position_of(engine, under_way=bool(self._fits.under_way)) if resume else None,
            adapt=adapts(
                self.plan, self.problem, adapt, deadline_s, is_late=one_step_late is not None
            ),
            deadline_s=deadline_s,
        )

        def work(task: Task) -> History:
            return fitting.train(
                task, traced=self._traced, go_over=self._go_over, go_back=self._go_back
            )

        title = f"training {self.plan.model}"
        return self._fits.add(fitting, lambda before: Handle(work, title, after=before))

    def stop(self, within_s: float | None = None) -> int:
        """End all fits, between two steps, and keep the run: `save` has all of it, and
        `fit(..., resume=True)` goes on with the next batch.

        Parameters
        ----------
        within_s
            A step may take so long; default: as long as it likes.

        Returns
        -------
        int
            How many were cut short.

        Raises
        ------
        TimeoutError
            One has not come to the end of its step; it ends there.
        """
        return len(self._fits.stop(within_s))

    def rest(self) -> "list[Iterable[tuple[torch.Tensor, ...]]]":
        """End all fits, between two steps: of each the batches that it has not trained on.

        Raises
        ------
        UserError
            One that waits for its turn has another optimizer; nothing was ended.
        """
        return self._fits.rest()

    def switch(self, plan: Plan) -> "Handle[Run]":
        """Go over to another plan while the run goes on, with all state.

        On any failure the old plan stands.

        What a device lacks comes to it behind everything else; the plan changes between two steps,
        or two requests.

        Parameters
        ----------
        plan
            For the same model and mode; other devices, layers and shares.

        Returns
        -------
        Handle[Run]
            This run, once the new plan is in force.

        Raises
        ------
        UserError
            This is no plan.
        PlanError
            One plan trains and the other does not.
        """
        self._engine.check()
        if not isinstance(plan, Plan):
            raise UserError(
                f"a run switches to a plan, got {type(plan).__name__}.",
                next_step="run.switch(plans[1])",
            )
        if plan.training != self.plan.training:
            raise PlanError(
                "a run for training cannot become one for inference, nor the other way round."
            )

        def work(task: Task) -> "Run":
            self._go_over(plan, task)
            self._engine.chosen = plan
            return self

        return Handle(work, f"switching {plan.model}")

    def return_to(self, plan: Plan) -> None:
        """Go back to this plan, as after a loss, once its devices are there and it pays.

        Parameters
        ----------
        plan
            That was meant, in place of the one that the run has begun with.
        """
        self._engine.wanted = self._engine.chosen = plan

    def _go_over(self, plan: Plan, task: Task) -> None:
        self._go_back(plan, task)
        self._engine.wanted = plan

    def _go_back(self, plan: Plan, task: Task) -> None:
        cross(self._engine, plan, task)
        self._forget_evaluation()
        if self._drain is not None:
            self._drain.look()

    # --- inference --------------------------------------------------------------------------------

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the module answers to these inputs, any number of rows.

        Of a training run, with the weights of now; of one for inference, with those at its
        deployment. A module that is in training answers as after `net.eval()`. Where the module or
        its values were changed since, it is refused. (A change of a large tensor in place through
        `.data`, which torch does not count, is not seen.)

        Inputs may come by the names that `forward` gives them, too, or in a mapping: run(x,
        mask=m), run(batch).

        Raises
        ------
        ModelError
            The module is not what it was, or inputs are not what they should be.
        RequestFailed
            Where an operator failed over these inputs; the run goes on.
        UserError
            There is no row, or an input is not what it should be.
        """
        self._engine.check()
        check_autocast("it is called")
        if self.plan.training:
            return self._answer(*inputs, **named)
        engine = self._engine
        check_as_sent(engine.model, engine.value_marks)
        given = batches.as_tuple((*inputs, named), engine.model.arguments.requested)
        rows = engine.model.check_inputs(*given)
        if rows == 0:
            raise UserError("a request needs one row or more, got none.")
        parts = [*answers(engine, given, rows)]
        names = [tensor.name for tensor in engine.compiled_plan.segments[-1].outputs]
        return engine.model.answer(tensors.joined(parts, names))

    def adapt(self) -> "Handle[tuple[Decision, ...]]":
        """Compare requests with their prediction while they are answered, and go over to another
        plan where devices or links have changed and that pays.

        Until the handle is cancelled or the run is closed. What was decided and why is in
        `run.decisions`. A `fit` adapts by itself.

        Returns
        -------
        Handle[tuple[Decision, ...]]
            What was decided, once the run is closed.

        Raises
        ------
        PlanError
            The run trains.
        UserError
            There is no profile to adapt by.
        """
        self._engine.check()
        if self.plan.training:
            raise PlanError("a training adapts by itself: run.fit(data, adapt=True).")
        adapts(self.plan, self.problem, True, None)  # there is a profile

        def work(task: Task) -> tuple[Decision, ...]:
            Adapting(self._engine, None, self._traced, self._go_over).keep_looking(task)
            return self.decisions

        return Handle(work, f"adapting {self.plan.model}")

    def _answer(self, *inputs: Any, ema: bool = False, **named: Any) -> Any:
        """Of a run in training: again, where a device was lost meanwhile and others are left."""
        engine = self._engine
        tries = 0
        while True:
            tries += 1
            try:
                evaluation = self._evaluating(ema)
                try:
                    return evaluation.run(*inputs, **named)
                finally:
                    evaluation.leave()
            except PotluckError as error:
                if tries > len(engine.members) or not engine.can_recover(error):
                    raise
                with engine.boundary():
                    self._forget_evaluation()
                    surviving(engine, lambda: see_all(engine))

    def _evaluating(self, ema: bool) -> Evaluation:
        """A run for inference with the weights of now, on about the same devices; entered."""
        with self._engine.boundary():
            self._engine.finish()
            if self._evaluation is None:
                plan = evaluation_plan(self._engine.model, self.plan, EVALUATION_ROWS)
                engine = self._engine
                inner = Run(
                    RunEngine(
                        self._link,
                        engine.members,
                        engine.model,
                        plan,
                        optimizer=None,
                        seed=0,
                        profile=engine.compiler.profile,
                    ),
                    self._link,
                )
                self._evaluation = Evaluation(inner)
            if self._evaluation.weights_of != (self.step, ema):
                self._engine.model.check_as_traced()
                state = all_state(self._engine, ema=ema)
                self._evaluation.run._engine.state.push(state)
                self._evaluation.weights_of = self.step, ema
            return self._evaluation.enter()

    def evaluate(self, data: Any, score: Any, *, ema: bool = False) -> Any:
        """The mean over rows of `score(outputs, *targets)`, which is a mean over the rows of one
        batch. Several scores are taken of the same answers: {"accuracy": ..., "loss": ...}.

        Of batches that are mappings, targets are those that `score` names, or the model's.

        Parameters
        ----------
        data
            As for `fit`.
        score
            Called as score(outputs, *targets) per batch of at most 128 rows. Gives a mean over
            rows, or what `cross_entropy` and `nll_loss` give with weights or ignored targets; or a
            pair, a sum and what the sum over all batches is divided by (the number of tokens that
            count). Any other ratio, or a root of a mean, is to be such a pair, or a metric with
            `update` and `compute`, as those of torchmetrics. Or a mapping of such by name.
        ema
            With the moving average of the weights.

        Returns
        -------
        float or dict
            The score, or of a mapping each by its name.

        Raises
        ------
        UserError
            The data has no batch.
        """
        self._engine.check(training=ema)
        model = self._engine.model
        arguments = arguments_of(model.arguments, score)
        compares = any(layer.whole_batch for layer in model.layers())
        # what compares rows compares all that are given at once
        most_rows = MAX_SIZE if compares else EVALUATION_ROWS * REQUESTS_IN_FLIGHT
        found = batches.batches(data, most_rows, arguments)
        answer = partial(self._answer, ema=True) if ema else self
        return evaluated(found, answer, len(model.inputs()), score)

    def detach(
        self,
        data: Any = None,
        epochs: int = 1,
        *,
        to: str = "",
        key: str = "",
        adapt: bool | None = None,
    ) -> "Handle[Any]":
        """Hand the training over to a coordinator, so that the notebook may be closed:
        `Home.attach()` picks it up again.

        Model, plan, state and batches go there as files, and none of your code; of
        `potluck.ArrayFiles` only names, order and seed: the coordinator reads its own copy. This
        run ends, and where the coordinator is that of this computer, so does this home: it has the
        same keys.

        Parameters
        ----------
        data, epochs
            As for `fit`; default: what is left of the latest `fit`, which ends between two steps
            once a coordinator is found.
        to, key
            Address and key of a coordinator elsewhere, as `potluck coordinate` prints them;
            default: the one of this computer, which is started.
        adapt
            As for `fit`.

        Returns
        -------
        Handle[DetachedRun]
            How far it is, its losses, and its weights.

        Raises
        ------
        UserError
            There is no batch left, or nobody can go on with it: the agents of a lab end with it.
        HomeError
            The coordinator refuses; says why. The run stays here: a fit that had ended for it goes
            on with `fit(..., resume=True)`.
        """
        self._engine.check(training=True)
        if self.hand_over is None:
            raise UserError("this run has no home that could hand it over.")
        if in_use(self._engine).is_scheduled:
            raise UserError(
                "its rates follow a schedule, which is your code and stays here.",
                next_step="Fit with an optimizer of one rate before.",
            )
        if data is None and not self._fits.under_way:
            raise nothing_under_way()
        rest = partial(remaining_batches, self._engine, self._fits, data, epochs)
        return self.hand_over(self, rest, to=to, key=key, adapt=adapt)

    # --- state ------------------------------------------------------------------------------------

    def state_dict(self, *, ema: bool = False) -> "dict[str, torch.Tensor]":
        """All weights and buffers of the model as they are on the devices now, by the module's own
        names.

        Parameters
        ----------
        ema
            Of weights that are trained, their moving average: of `fit(..., ema=0.999)`.

        Raises
        ------
        UserError
            No average is kept.
        """
        kept = all_state(self._engine, ema=ema)
        state = self._engine.model.state_dict(kept, unchanging=True)
        return {**state, **self._engine.unused_of_file}

    def load_into(self, module: Any = None, *, ema: bool = False) -> None:
        """Bring the weights back into a module.

        Default: the one that the model was made from, and its loss.

        Waits for a `fit` that is still going on, unless it is called inside one; raises what it
        raised, unless somebody has waited for it before.

        Parameters
        ----------
        module
            Default: the model's own.
        ema
            The moving average of the weights, as of `state_dict`.

        Raises
        ------
        UserError
            The module has none of this model's weights.
        """
        latest = self._fits.latest
        if latest is not None and not latest.seen and not latest.waits_for_caller:
            with suppress(CancelledError):
                latest.wait()
        engine = self._engine
        state, model = all_state(engine, ema=ema), engine.model
        if module is None or model.is_made_from(module):
            model.load_state(state)
            for name, tensor in model.unused_state().items():
                tensor.copy_(engine.unused_of_file.get(name, tensor))
            engine.unused_of_file = {}
            if self.plan.training:
                engine.weights_of_file = {}
                engine.loss_constants = model.loss_constants(state)
            return
        named = {**model.state_dict(state), **engine.unused_of_file}
        check_shapes(module, named)
        strangers = module.load_state_dict(named, strict=False).unexpected_keys
        if len(strangers) == len(named):
            raise UserError(
                f"the module {type(module).__name__} has none of this model's weights, such as "
                f"{strangers[0]}.",
                next_step="Load them into a module of the kind that the model was made from.",
            )

    def save(
        self, path: str | Path, *, latest: bool = True, patience_s: float | None = None
    ) -> int:
        """Write weights, optimizer state, step, seed and plan to one file: `home.deploy(plan,
        resume=path)` goes on.

        Of a run that has ended because devices were lost, what it could have gone back to.

        Parameters
        ----------
        path
            Where to.
        latest
            Of a training that is protected, False writes what it could go back to: no device is
            asked, and no step waits.
        patience_s
            Wait no longer for devices that are lost; default: as long as the run does.

        Returns
        -------
        int
            The step that it is the state after.

        Raises
        ------
        FileError
            It cannot be written; nothing is left behind.
        """
        saved = checkpoint_of(self._engine, latest=latest, patience_s=patience_s)
        checkpoint.save(path, saved)
        return saved.step

    @property
    def protection(self) -> Protection | None:
        """What a training goes back to where a device is lost, how often that is renewed and at
        what cost. None where a loss ends it, and of a run for inference: the model is here.
        """
        return self._engine.protection

    @property
    def is_protected(self) -> bool:
        """Whether it goes on, with what is left, where a device is lost."""
        return self._engine.is_protected

    @property
    def is_open(self) -> bool:
        """Whether it can go on: not closed, and nothing has ended it."""
        return self._engine.failed is None

    def close(self) -> None:
        """End the run: its devices forget it."""
        closed = UserError("it was closed.")
        self._engine.end(closed)  # first: whoever waits for a device has an end
        self._forget_evaluation()

    def _forget_evaluation(self) -> None:
        with self._engine.boundary():
            if self._evaluation is not None:
                self._evaluation.retire()
                self._evaluation = None
