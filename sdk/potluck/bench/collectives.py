"""Data parallelism as PyTorch does it, DDP and FSDP: collectives beside the computing, as tasks of
the judge's engine on the same network and costs.

No plan of ours says this: there gradients are summed when a step's backwards are over. What is left
out favours them: each device has its rows already, sums cost nothing, FSDP gathers as far ahead as
links let it.
"""

from collections.abc import Callable
from math import inf

from potluck.planning.building_blocks.row_allocation import proportion
from potluck.records import Problem
from potluck.simulate import cost, equations, footprint
from potluck.simulate.engine import TaskGraph, run
from potluck.simulate.paths import Paths

BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb; here FSDP's units as well

Unit = tuple[int, int]  # layers [start, stop)
Waits = list[tuple[int, ...]]  # per device: the tasks that it waits for


def ddp_s(problem: Problem, table: cost.CostTable) -> float:
    """Seconds of a step: a ring all-reduce of each bucket of gradients as soon as it is there.

    Infinite where a device cannot hold the model and its rows.

    Parameters
    ----------
    problem
        Training; all its devices take equal rows, and form a ring as they are listed.
    table
        Of this problem.
    """
    step = _Step(problem, table)
    if not step.fits():
        return inf
    done, summed = step.forward((0, len(problem.layers)), step.nothing), list[Waits]()
    for unit in reversed(units(table, BUCKET_BYTES)):
        done = step.backward(unit, done)
        summed.append(step.ring(table.summed_bytes(*unit), done, 2 * (step.n - 1)))
    return step.ended_s(_both(done, *summed), part=1.0)


def fsdp_s(problem: Problem, table: cost.CostTable) -> float:
    """Seconds of a step with weights, gradients and moments in shards (ZeRO-3).

    Each unit is gathered for its forward and again for its backward, but for the last, which stays;
    its gradients are reduced and scattered. Memory is not checked: it needs less than DDP.

    Parameters
    ----------
    problem
        Training; all its devices take equal rows, and form a ring as they are listed.
    table
        Of this problem.
    """
    step, parts = _Step(problem, table), units(table, BUCKET_BYTES)
    done, scattered = step.nothing, list[Waits]()

    def gathered(unit: Unit) -> Waits:
        return step.ring(table.parameter_bytes(*unit), step.nothing, step.n - 1)

    for unit in parts:
        done = step.forward(unit, _both(done, gathered(unit)))
    for unit in reversed(parts):
        weights = step.nothing if unit == parts[-1] else gathered(unit)
        done = step.backward(unit, _both(done, weights))
        scattered.append(step.ring(table.summed_bytes(*unit), done, step.n - 1))
    return step.ended_s(_both(done, *scattered), part=1 / step.n)


def units(table: cost.CostTable, most_bytes: int) -> list[Unit]:
    """Runs of neighbouring layers of so many bytes of parameters; one layer may have more.

    Parameters
    ----------
    table
        Of the problem.
    most_bytes
        Of a unit of several layers.
    """
    found = list[Unit]()
    start = 0
    n_layers = len(table.problem.layers)
    for stop in range(1, n_layers + 1):
        if stop == n_layers or table.parameter_bytes(start, stop + 1) > most_bytes:
            found.append((start, stop))
            start = stop
    return found


def _both(*waits: Waits) -> Waits:
    return [tuple(task for tasks in each for task in tasks) for each in zip(*waits, strict=True)]


class _Step:
    """The tasks of one step: device i computes on resource 2 i and sends on 2 i + 1, collectives in
    the order in which they are added.
    """

    def __init__(self, problem: Problem, table: cost.CostTable) -> None:
        self.table, self.names = table, [device.name for device in problem.devices]
        self.devices, self.n = problem.devices, len(problem.devices)
        self.rows = proportion(problem.workload.batch, [1.0] * self.n)
        self.nothing: Waits = [()] * self.n
        paths = Paths(problem)
        ring = zip(self.names, [*self.names[1:], self.names[0]], strict=True)
        self.routes = [paths.route(*pair) for pair in ring] if self.n > 1 else []
        self.graph: TaskGraph = paths.graph()
        paths.place(self.graph, self.names)

    def fits(self) -> bool:
        """Whether every device holds the whole model and its rows."""
        stop, table = len(self.table.problem.layers), self.table
        needed = (
            footprint.memory_bytes(table, 0, stop, rows, warm_up=1, replicas=self.n)
            for rows in self.rows
        )
        held = (table.budgets[name] for name in self.names)
        return all(a <= b for a, b in zip(needed, held, strict=True))

    def forward(self, unit: Unit, waits: Waits) -> Waits:
        """Of all devices."""
        return self._computed(
            lambda i: self.table.forward_s(self.names[i], *unit, self.rows[i]), waits
        )

    def backward(self, unit: Unit, waits: Waits) -> Waits:
        """Of all devices."""
        return self._computed(
            lambda i: self.table.backward_s(self.names[i], *unit, self.rows[i]), waits
        )

    def _computed(self, seconds: Callable[[int], float], waits: Waits) -> Waits:
        return [
            (self.graph.add(2 * i, self.devices[i].overhead_s + seconds(i), after=waits[i]),)
            for i in range(self.n)
        ]

    def ring(self, nbytes: int, waits: Waits, n_rounds: int) -> Waits:
        """Rounds in which each device sends its right neighbour an n-th of the bytes, once its own
        are there (`waits`) and what came in the round before.
        """
        arrived, first = list(waits), len(self.graph.work)
        for _ in range(n_rounds):
            sent = [
                self.graph.add(
                    2 * i + 1, nbytes / self.n, after=arrived[i], priority=first, route=route
                )
                for i, route in enumerate(self.routes)
            ]
            arrived = [(sent[i - 1], *waits[i]) for i in range(self.n)]
        return arrived

    def ended_s(self, waits: Waits, part: float) -> float:
        """Seconds until all have taken the optimizer's step on this part of the weights."""
        stop = len(self.table.problem.layers)
        self._computed(
            lambda i: part * equations.update_s(self.table, self.devices[i], 0, stop), waits
        )
        return max(run(self.graph).stop_s)
