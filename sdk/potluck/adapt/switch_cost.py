"""What a switch of plans costs, in seconds of training: predicted, then corrected by those that
were measured. Pure.
"""

from dataclasses import dataclass

from potluck.records import Plan, Problem, Training

# Of the time that missing state is on its way, what the run loses beside it: it travels behind
# everything else, but on the same media. Assumed, until a switch was measured.
BESIDE_FRAC = 0.25
STEPS_LOST = 2.0  # to finish what is under way, and to fill the new pipeline
LEAST_SCALE = 0.25  # one switch that was for nothing is no reason to switch at every breath


def delta(before: Plan, after: Plan, problem: Problem) -> dict[tuple[str, str], int]:
    """The bytes of state that each device lacks for the new plan, by giver and taker.

    A layer comes from the first device that holds it: parameters, buffers, and the copies of the
    parameters that the optimizer keeps.

    Parameters
    ----------
    before, after
        The plans.
    problem
        With their layers.
    """
    workload = problem.workload
    copies = workload.kept_copies if isinstance(workload, Training) else 0
    holders = [stage.devices for stage in before.stages for _ in range(stage.start, stage.stop)]
    found: dict[tuple[str, str], int] = {}
    for stage in after.stages:
        for index in range(stage.start, stage.stop):
            layer = problem.layers[index]
            learning = layer.parameter_bytes - layer.frozen_bytes
            nbytes = layer.parameter_bytes + layer.buffer_bytes + copies * learning
            for device in stage.devices:
                if device not in holders[index]:
                    flow = holders[index][0], device
                    found[flow] = found.get(flow, 0) + nbytes
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCost:
    """Predicts what a switch costs. `scale`: measured by predicted seconds, so far; None before
    the first.
    """

    scale: float | None = None

    def seconds(self, before: Plan, after: Plan, problem: Problem, step_s: float) -> float:
        """What training loses.

        Parameters
        ----------
        before, after
            The plans.
        problem
            Under the conditions of now.
        step_s
            Of a step of the old plan.
        """
        network = problem.network
        moving_s = sum(
            nbytes / network.bandwidth(source, target)
            for (source, target), nbytes in delta(before, after, problem).items()
            if (source, target) in network.paths
        )
        predicted_s = STEPS_LOST * step_s + BESIDE_FRAC * moving_s
        return predicted_s * (self.scale if self.scale is not None else 1.0)

    def learned(self, predicted_s: float, measured_s: float) -> "SwitchCost":
        """After a switch: the next ones go half of the way from what is known to this one.

        Parameters
        ----------
        predicted_s
            By `seconds`.
        measured_s
            Lost against usual steps.
        """
        known = self.scale if self.scale is not None else 1.0
        seen = max(measured_s, 0.0) / predicted_s * known if predicted_s > 0 else known
        scale = seen if self.scale is None else (known + seen) / 2
        return SwitchCost(scale=max(scale, LEAST_SCALE))
