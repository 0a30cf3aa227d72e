"""Asteroid's Algorithm 2: hybrid pipeline parallelism by dynamic programming over layers, stages
and devices.

Ye et al., "Asteroid", MobiCom 2024, section 3.3, eqs. (4)-(11). Devices sorted by memory, largest
first, because early stages keep more activations. Q(l, n, p) is the best round of the last l layers
in p stages on the last n devices.

Where we differ: a device may be left out (Q(l, n, p) may be Q(l, n - 1, p)), and the dominant step
is sought among all steps instead of three. Transfers follow the real shares on both sides of a cut,
and inference has its own objective.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.closed_form import PipelineStep, period_s
from potluck.planning.building_blocks.stages import communication, estimate_of, make_stage
from potluck.records import Plan, Problem, Stage, Training
from potluck.simulate import cost, footprint

ROUNDED = 1 - 1e-9  # what rounding may take from a bound


@dataclass(frozen=True, slots=True)
class PartialPipeline:
    """The best pipeline found for some last layers: Q, its stages from first to last, and their
    steps.
    """

    seconds: float
    stages: tuple[Stage, ...] = ()
    steps: tuple[PipelineStep, ...] = ()


def plan_hybrid(
    problem: Problem,
    table: cost.CostTable | None = None,
    *,
    leave_out: bool = True,
    most_cuts: int = candidates.MAX_CUTS,
) -> Iterator[Plan]:
    """The best plan for every micro-batch size, number of stages and number of last devices.

    Unjudged.

    Without `leave_out` as printed: for all devices, of which only Algorithm 1 may give some no
    rows.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem, if there is one already.
    leave_out
        Devices may be left out, which the paper's algorithm does not.
    most_cuts
        Places to cut: its time grows with their square, and with the cube of the devices.
    """
    table = table or cost.CostTable(problem)
    order = sorted(
        problem.devices, key=lambda device: (-cost.budget_bytes(problem, device), device.name)
    )
    names = [device.name for device in order]
    for micro_batch in candidates.micro_batches(problem):
        search = Search(table, names, micro_batch, leave_out=leave_out, most_cuts=most_cuts)
        for found in search.run():
            yield Plan(
                planner="asteroid",
                model=problem.model,
                stages=found.stages,
                micro_batch=micro_batch,
                n_micro_batches=search.n_micro_batches,
                training=search.training,
                latency_s=found.seconds,
            )


class Search:
    """Algorithm 2 for one order of devices and one micro-batch size.

    Parameters
    ----------
    table
        Of the problem.
    names
        The devices, in this order.
    micro_batch
        Rows of a micro-batch.
    leave_out
        Devices may be left out.
    most_cuts
        Places to cut.
    """

    def __init__(
        self,
        table: cost.CostTable,
        names: Sequence[str],
        micro_batch: int,
        *,
        leave_out: bool = True,
        most_cuts: int = candidates.MAX_CUTS,
    ) -> None:
        self.leave_out = leave_out
        self.table = table
        self.problem = table.problem
        self.names = names
        self.micro_batch = micro_batch
        self.n_micro_batches = self.problem.workload.batch // micro_batch
        self.training = isinstance(self.problem.workload, Training)
        self.estimate = estimate_of(self.problem)
        self.fills = self.estimate is not period_s  # whether filling the pipeline counts
        self.cuts = candidates.cuts(self.problem, most_cuts)
        self.budgets = {d.name: cost.budget_bytes(self.problem, d) for d in self.problem.devices}
        self.limit_s = table.limit_s
        self._heads: dict[
            tuple[int, int, tuple[str, ...], int], tuple[Stage, PipelineStep] | None
        ] = {}
        self._depths: dict[tuple[int, int, tuple[str, ...], tuple[int, ...]], int] = {}
        # by cuts: how often in a second all devices before each of the order compute a batch
        self._speeds: dict[tuple[int, int], list[float]] = {}

    def least_s(self, i: int, j: int, n: int, n_behind: int) -> float:
        """Seconds of a step below which layers between two cuts cannot be on the last `n` devices
        but the last `n_behind`, however they share the rows.

        Parameters
        ----------
        i, j
            Numbers of the cuts.
        n, n_behind
            Devices, from the end of their order.
        """
        if (i, j) not in self._speeds:
            each = (self._batches_per_s(name, self.cuts[i], self.cuts[j]) for name in self.names)
            self._speeds[i, j] = [*accumulate(each, initial=0.0)]
        speeds, last = self._speeds[i, j], len(self.names)
        return ROUNDED / max(speeds[last - n_behind] - speeds[last - n], 1e-30)

    def _batches_per_s(self, name: str, start: int, stop: int) -> float:
        """At the number of rows at which one takes least, which is a measured one or all."""
        table = self.table
        sizes = {1, self.micro_batch}
        sizes |= {n for n in self.problem.costs[name][start].rows if n < self.micro_batch}
        each = (table.compute_s(name, start, stop, n) / n for n in sizes)
        return 1 / max(min(each) * self.problem.workload.batch, 1e-30)

    def run(self) -> Iterator[PartialPipeline]:
        """Q(all layers, n, p) for every n and p that has one."""
        n_devices, n_cuts = len(self.names), len(self.cuts)
        nothing, unused = PartialPipeline(0.0), range(n_devices + 1 if self.leave_out else 1)
        behind: dict[tuple[int, int], PartialPipeline] = {(n_cuts - 1, n): nothing for n in unused}
        for p in range(1, min(n_devices, n_cuts - 1) + 1):
            layer: dict[tuple[int, int], PartialPipeline] = {}
            for i in range(n_cuts - 2, -1, -1):
                for n in range(p, n_devices + 1):
                    best = self._best(
                        i, n, p, behind, layer.get((i, n - 1)) if self.leave_out else None
                    )
                    if best is not None:
                        layer[i, n] = best
            for n in range(p if self.leave_out else n_devices, n_devices + 1):
                if (0, n) in layer and layer[0, n] is not layer.get((0, n - 1)):
                    yield layer[0, n]
            behind = layer

    def _best(
        self,
        i: int,
        n: int,
        p: int,
        behind: dict[tuple[int, int], PartialPipeline],
        skipped: PartialPipeline | None,
    ) -> PartialPipeline | None:
        """eq. (10): the best head stage from cut i on the next devices, before the best pipeline of
        what is left.
        """
        best = skipped
        for n_behind in range(n):
            group = tuple(self.names[len(self.names) - n : len(self.names) - n_behind])
            for j in range(i + 1, len(self.cuts)):
                rest = behind.get((j, n_behind))
                if rest is None or (p == 1) != (j == len(self.cuts) - 1):
                    continue
                bound_s = self.limit_s if best is None else min(best.seconds, self.limit_s)
                if rest.seconds >= bound_s:
                    continue  # a stage more never makes a round shorter
                if self.least_s(i, j, n, n_behind) >= bound_s:
                    break  # longer stages work more
                head = self.head(self.cuts[i], self.cuts[j], group, p)
                if head is None:
                    continue
                stage, step = head
                if best is not None:
                    # No round is shorter than one step's own work (eq. (6) with dm = it).
                    if self.n_micro_batches * (step.forward_s + step.backward_s) >= best.seconds:
                        break
                    # Nor than the round of what is behind, which starts no earlier than the head's
                    # first output.
                    if rest.seconds + (step.forward_s if self.fills else 0.0) >= best.seconds:
                        continue
                steps = (step, *self.communication(stage, rest), *rest.steps)
                seconds = self.estimate(steps, self.n_micro_batches)
                if best is None or seconds < best.seconds:
                    best = PartialPipeline(seconds, (stage, *rest.stages), steps)
        return best

    def head(
        self, start: int, stop: int, group: tuple[str, ...], p: int
    ) -> tuple[Stage, PipelineStep] | None:
        """Layers [start, stop) on `group` as the p-th stage from the end, its rows by Algorithm 1.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        group
            Devices of the stage.
        p
            Its number, from the end.
        """
        self.table.at_work()
        key, warm_up = (start, stop, group, p), min(2 * p - 1, self.n_micro_batches)
        if key not in self._heads:
            shallow = self._heads.get((start, stop, group, p - 1)) if self.training else None
            if shallow is not None and warm_up <= self._deepest(shallow[0], group):
                self._heads[key] = replace(shallow[0], warm_up=warm_up), shallow[1]
            else:
                self._heads[key] = make_stage(
                    self.table, start, stop, group, self.micro_batch, warm_up
                )
        return self._heads[key]

    def _deepest(self, stage: Stage, group: tuple[str, ...]) -> int:
        """The most micro-batches with which the rows of a shallower stage fit: up to there
        Algorithm 1 keeps them.
        """
        key = stage.start, stage.stop, group, stage.shares
        if key not in self._depths:
            self._depths[key] = min(
                footprint.depth_that_fits(
                    self.table,
                    stage.start,
                    stage.stop,
                    rows,
                    self.budgets[name],
                    replicas=len(group),
                    n_micro_batches=self.n_micro_batches,
                )
                for name, rows in zip(stage.devices, stage.shares, strict=True)
            )
        return self._depths[key]

    def communication(self, stage: Stage, rest: PartialPipeline) -> tuple[PipelineStep, ...]:
        """The communication step between `stage` and the stages behind it."""
        if not rest.stages:
            return ()
        return (communication(self.problem, stage, rest.stages[0]),)
