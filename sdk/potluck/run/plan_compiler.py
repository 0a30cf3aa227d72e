"""What a run makes its compiled plans by: the model, its devices, and the profile that predicts
them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from potluck.adapt.conditions import Conditions, under
from potluck.contention.transfer_order import one_at_a_time, with_ordered_transfers
from potluck.errors import PlanError, UserError
from potluck.planning.evaluate import judged_programs
from potluck.profile.profiles import Profile
from potluck.records import Inference, Plan, Problem, Training
from potluck.run.compiled_plan import (
    INFER,
    CompiledPlan,
    beyond_plan,
    compile_for_run,
    kept_copies,
    train_name,
)
from potluck.run.emulated_times import paced
from potluck.run.weight_update import Update
from potluck.schedule import Compiled
from potluck.schedule.late_order import Judge
from potluck.schedule.policies import Policy, Times
from potluck.sessions.failures import sizes
from potluck.sessions.members import Members
from potluck.simulate import simulate
from potluck.simulate.cost import CostTable
from potluck.simulate.stage_times import stage_times
from potluck_wire.version import (
    COMMON_BEGIN,
    HALF_MOMENTS,
    LATE_STEPS,
    RECOMPUTE,
    SPLIT_BACKWARD,
    TAKES,
    UPDATES,
    show,
)

PLACE_BYTES = 64  # what a value takes of a worker's memory for values is a multiple of this


class PlanCompiler:
    """Compiles plans for the devices that are there, and predicts them.

    Parameters
    ----------
    model
        What is run.
    members
        The devices.
    profile
        What steps are predicted by; None predicts nothing.
    refine_s
        Seconds of an exact solver, to better the order of transfers.
    """

    def __init__(
        self, model: Any, members: Members, profile: Profile | None, refine_s: float
    ) -> None:
        self._model = model
        self._members = members
        self.profile = profile
        self._refine_s = refine_s
        self._solved: tuple[object, object, Problem | None] = None, None, None  # by plan, profile
        self.conditions = Conditions()  # of now, against the profile; transfers are ordered by them

    def make(
        self,
        plan: Plan,
        *,
        run: str,
        epoch: int,
        optimizer: Update | None,
        sizes: tuple[int, ...] = (),
        seed: int,
        schedule: str | Policy | None,
        order_transfers: bool | None,
    ) -> CompiledPlan:
        """A compiled plan for this plan, with programs for these batch sizes, too.

        Parameters
        ----------
        plan
            For the model.
        run, epoch
            Under which devices know it.
        optimizer
            None for inference.
        sizes
            Rows of batches, beside the plan's own.
        seed, schedule, order_transfers
            As for `compile_for_run`.

        Raises
        ------
        UserError
            An agent is too old to recompute activations, for backwards in two parts, or for updates
            that come late, and the plan, schedule or optimizer has it do so.
        PlanError
            A device cannot take in at once what an operation needs.
        """
        backends = self.backends(plan.devices)  # all of them are there
        self._check_recomputing(plan)
        if optimizer is not None:
            self._check_optimizer(plan, optimizer)
        compiled_plan = self.paced(
            compile_for_run(
                self._model,
                plan,
                run=run,
                epoch=epoch,
                optimizer=optimizer,
                backends=backends,
                sizes=sizes,
                seed=seed,
                schedule=schedule,
                order_transfers=order_transfers,
                fed_whole=self._all_speak(TAKES, plan),
                times=self._times(plan, optimizer),
                judge=self._judge(plan, optimizer),
            )
        )
        self._check_splitting(compiled_plan)
        self._check_room(compiled_plan)
        return compiled_plan

    def after(
        self,
        old: CompiledPlan,
        plan: Plan,
        epoch: int,
        optimizer: Update | None,
        sizes: tuple[int, ...],
    ) -> CompiledPlan:
        """The next one of the same run, as `make` makes it.

        Parameters
        ----------
        old
            The one in force.
        plan, epoch, optimizer, sizes
            As for `make`.
        """
        return self.make(
            plan,
            run=old.run,
            epoch=epoch,
            optimizer=optimizer,
            sizes=sizes,
            seed=old.seed,
            schedule=old.schedule,
            order_transfers=old.order_transfers,
        )

    def _check_room(self, compiled_plan: CompiledPlan) -> None:
        """An agent hands its worker what came in through a memory of a size; a step that needs more
        there at once would wait for ever.
        """
        for device in compiled_plan.plan.devices:
            room = self._members[device].capability.get("max_value_bytes")
            for name, compiled in compiled_plan.compiled.items():
                needed = compiled.most_received_bytes(device, PLACE_BYTES)
                if room is not None and needed > room:
                    much, little = sizes(needed, room)
                    raise PlanError(
                        f"its worker takes in at most {little} from others at once, and one "
                        f"operation of {name!r} takes {much}.",
                        device=device,
                        next_step="Use smaller micro-batches, or cut the model elsewhere.",
                    )

    def backends(self, devices: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """What each of these devices computes with; raises what keeps one away."""
        return {
            name: tuple(self._members[name].capability["backends"])
            for name in self._members.need(devices)
        }

    def problem(self, compiled_plan: CompiledPlan) -> Problem | None:
        """The planning problem that this compiled plan solves.

        None where nobody profiled the model for it there.
        """
        solved = self._solved  # of several threads each keeps what it looked at
        if solved[0] is not compiled_plan or solved[1] is not self.profile:
            found = self.problem_of(
                compiled_plan.plan, compiled_plan.optimizer, scaled=compiled_plan.scales_loss
            )
            self._solved = solved = compiled_plan, self.profile, found
        return solved[2]

    def problem_of(
        self, plan: Plan, optimizer: Update | None, *, scaled: bool = False
    ) -> Problem | None:
        """The planning problem that a plan solves; None where nobody profiled the model for it.

        Parameters
        ----------
        plan
            For the model.
        optimizer
            None for inference.
        scaled
            Whether its loss is scaled.
        """
        profile = self.profile
        if profile is None or (profile.training if plan.training else profile.inference) is None:
            return None
        if not {device.name for device in profile.devices}.issuperset(plan.devices):
            return None
        workload: Training | Inference
        if optimizer is None:
            workload = Inference(batch=plan.batch)
        else:
            workload = Training(
                batch=plan.batch,
                micro_batch=plan.micro_batch,
                optimizer_copies=kept_copies(optimizer, self._model.trained),
                bfloat16_moments=optimizer.halves,
                clipped=scaled or optimizer.clip_norm is not None,
            )
        return replace(profile.problem(workload), model=plan.model)  # as its maker calls it

    def _times(self, plan: Plan, optimizer: Update | None) -> Times | None:
        """What stages of plans like this one take; None where nobody knows."""
        problem = self.problem_of(plan, optimizer) if plan.training else None
        return None if problem is None else partial(stage_times, CostTable(problem))

    def _judge(self, plan: Plan, optimizer: Update | None) -> Judge | None:
        """What programs for such a plan take; None where nobody knows."""
        problem = self.problem_of(plan, optimizer) if plan.training else None
        return None if problem is None else partial(judged_programs, problem, plan)

    def paced(self, compiled_plan: CompiledPlan) -> CompiledPlan:
        """The compiled plan with turns for its transfers and the times that emulated devices shall
        take, as a profile says.

        A schedule of the user's own keeps other values than the one that was planned for, and
        another optimizer keeps more: such peaks are predicted here.

        Raises
        ------
        PlanError
            Transfers are to take turns, and there is no profile.
        """
        problem = self.problem(compiled_plan)
        if problem is None and compiled_plan.order_transfers:
            raise PlanError(
                "transfers take turns by a profile, and there is none.",
                next_step="Use home.profile(model).",
            )
        if problem is not None and self._all_speak(COMMON_BEGIN, compiled_plan.plan):
            now = under(problem, self.conditions)
            steps = {
                name: one_at_a_time(item, now)
                for name, item in compiled_plan.compiled.items()
                if name in compiled_plan.infer_rows or name in compiled_plan.train_rows
            }
            if compiled_plan.order_transfers is not False:
                steps = {
                    name: with_ordered_transfers(
                        item,
                        now,
                        always=bool(compiled_plan.order_transfers),
                        refine_s=self._refine_s,
                    )
                    for name, item in steps.items()
                }
            compiled_plan = replace(compiled_plan, compiled={**compiled_plan.compiled, **steps})
        if problem is not None:
            compiled_plan = _with_peaks(compiled_plan, problem)
        if problem is not None:
            compiled_plan = replace(compiled_plan, peak_bytes=beyond_plan(compiled_plan, problem))
        compiled = {
            name: self.paced_programs(item, compiled_plan)
            for name, item in compiled_plan.compiled.items()
        }
        return replace(compiled_plan, compiled=compiled)

    def paced_programs(self, compiled: Compiled, compiled_plan: CompiledPlan) -> Compiled:
        """The same for some programs of it."""
        problem = self.problem(compiled_plan)
        emulated = [
            name for name in compiled.programs if self._members[name].capability.get("emulated")
        ]
        return paced(compiled, problem, emulated) if problem is not None and emulated else compiled

    def _all_speak(self, needed: tuple[int, int], plan: Plan) -> bool:
        return all(self._members[name].speaks(needed) for name in plan.devices)

    def _check_splitting(self, compiled_plan: CompiledPlan) -> None:
        names = [
            name
            for compiled in compiled_plan.compiled.values()
            for name, program in compiled.programs.items()
            if any(item.op == "backward_weight" for item in program.instructions)
        ]
        self._need(
            SPLIT_BACKWARD,
            names,
            "the schedule has it do backwards in two parts, which its agent cannot: that",
            "deploy(plan, schedule='1f1b')",
        )

    def _check_optimizer(self, plan: Plan, optimizer: Update) -> None:
        if optimizer.needs_new_agents:
            self._need(
                UPDATES,
                plan.devices,
                "its agent knows SGD, momentum and AdamW with one setting for all weights, and no "
                "limits of gradients: what was asked for",
                "plan with other devices",
            )
        if optimizer.halves:
            self._need(
                HALF_MOMENTS,
                plan.devices,
                "its agent does not know moments in bfloat16: that",
                "leave bfloat16_moments out",
            )
        if optimizer.one_step_late is not None:
            self._need(
                LATE_STEPS,
                plan.devices,
                "its agent cannot take steps whose updates come late: that",
                "leave out one_step_late=",
            )

    def _check_recomputing(self, plan: Plan) -> None:
        self._need(
            RECOMPUTE,
            [name for stage in plan.stages if stage.recompute for name in stage.devices],
            "the plan has it recompute activations, which its agent cannot: that",
            "plan with other devices",
        )

    def _need(
        self, version: tuple[int, int], names: Iterable[str], what: str, instead: str
    ) -> None:
        """Refuse the first of these devices whose agent does not speak this version."""
        for name in names:
            if not self._members[name].speaks(version):
                raise UserError(
                    f"{what} needs protocol {show(version)}.",
                    device=name,
                    next_step=f"Update potluck there, or {instead}.",
                )


def _with_peaks(compiled_plan: CompiledPlan, problem: Problem) -> CompiledPlan:
    """With the peaks of its own steps: instead of those that it was planned with where the schedule
    is the user's own, else where they are above these.
    """
    plan, peaks = compiled_plan.plan, dict[str, int]()
    if compiled_plan.schedule is not None or compiled_plan.optimizer is not None:
        step = INFER if compiled_plan.optimizer is None else train_name(plan.batch, plan)
        peaks.update(simulate(compiled_plan.compiled[step], problem).peak_bytes)
    if compiled_plan.schedule is None:
        planned = plan.peak_bytes
        peaks = {name: n for name, n in peaks.items() if n > planned.get(name, 0)}
        peaks = {**planned, **peaks} if peaks else {}
    return replace(compiled_plan, plan=replace(plan, peak_bytes=peaks)) if peaks else compiled_plan
