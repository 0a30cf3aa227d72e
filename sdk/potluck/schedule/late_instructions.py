"""Several steps whose updates come one step late as the instructions that agents carry out."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from potluck.errors import PlanError
from potluck.records import Plan, Segment, Tensor
from potluck.schedule.instructions import StepInstructions
from potluck.schedule.ir import Action
from potluck.schedule.micro_batches import Division, MicroBatch
from potluck.schedule.program_builder import ProgramBuilder
from potluck.schedule.shared_weights import holders_of
from potluck.schedule.step import StepSpec
from potluck.schedule.step_update import StepUpdate


class LateInstructions(StepInstructions):
    """Takes several steps down as instructions.

    Parameters
    ----------
    programs
        Where they are written down.
    plan, segments
        Of all steps.
    divisions
        The micro-batches of each.
    spec
        Of all steps as one.
    step_update
        What the optimizer's steps are told.
    fed_whole
        As for `compile_training`.
    """

    def __init__(
        self,
        programs: ProgramBuilder,
        plan: Plan,
        segments: Sequence[Segment],
        divisions: Sequence[Division],
        spec: StepSpec[Tensor],
        *,
        step_update: StepUpdate,
        fed_whole: bool,
    ) -> None:
        options: dict[str, Any] = {"step_update": step_update, "fed_whole": fed_whole}
        division = one_after_the_other(divisions)
        super().__init__(programs, plan, segments, division, spec, **options)
        self._steps = [
            StepInstructions(programs, plan, segments, each, spec, late_step=j, **options)
            for j, each in enumerate(divisions)
        ]
        self._step_of = steps_of(divisions)

    def of_step(self, number: int) -> StepInstructions:
        """Takes the losses and the update of that step down.

        Parameters
        ----------
        number
            Of the step, from 0.
        """
        return self._steps[number]

    def _of(self, action: Action) -> StepInstructions:
        return self._steps[self._step_of[action.stage][action.micro_batch]]

    def _batch_of(self, action: Action) -> int:
        return self._of(action).batch

    def _fed_as(self, action: Action, tensor: Tensor) -> str:
        return tensor.name if tensor.multiple else self._of(action).named(tensor.name)


def one_after_the_other(divisions: Sequence[Division]) -> Division:
    """The micro-batches of several steps as those of one.

    Parameters
    ----------
    divisions
        Of each step.
    """
    begins = [0, *accumulate(division[-1][-1].stop for division in divisions)]
    return tuple(
        tuple(
            MicroBatch(begin + part.start, begin + part.stop, part.shares)
            for begin, division in zip(begins, divisions, strict=False)
            for part in division[p]
        )
        for p in range(len(divisions[0]))
    )


def steps_of(divisions: Sequence[Division]) -> list[list[int]]:
    """Per stage, the step of each micro-batch.

    Parameters
    ----------
    divisions
        Of each step.
    """
    return [
        [j for j, division in enumerate(divisions) for _ in division[p]]
        for p in range(len(divisions[0]))
    ]


def check_late(plan: Plan, segments: Sequence[Segment], update: StepUpdate) -> None:
    """Refuse what updates that come late cannot do.

    Parameters
    ----------
    plan, segments
        Of the steps.
    update
        What their updates are told.

    Raises
    ------
    PlanError
        Gradients are looked at together over stages, or statistics over replicas.
    """
    synchronous = "Leave out one_step_late=."
    if update.limit is not None:
        what = "of float16 has a factor" if update.scaled else "is limited (clip_norm)"
        raise PlanError(
            f"the norm of all gradients {what}, and updates that come one step late take each "
            "stage's by itself.",
            next_step=synchronous,
        )
    if shared := holders_of(segments):
        name, holders = shared[0]
        raise PlanError(
            f"the stages {', '.join(map(str, holders))} share the weight {name}, whose gradients "
            "they sum in every step; updates that come one step late do not.",
            next_step="Plan the layers that use it as one stage; the lanes of a model divided by "
            f"tensor always share such, so plan the whole one. {synchronous}",
        )
    for stage, segment in zip(plan.stages, segments, strict=True):
        if len(stage.devices) > 1 and segment.buffer_count:
            raise PlanError(
                f"{' and '.join(stage.devices)} share the rows of layers [{stage.start}, "
                f"{stage.stop}), whose running statistics are of one mind only between two steps; "
                "with updates that come one step late there is no such time.",
                next_step=f"Give these layers to one device. {synchronous}",
            )
