"""Time, energy and memory of a plan straight from its layout: what `simulate` says of its programs,
many times faster.

Layouts and their task graphs are kept per shape; a plan then only fills in what its tasks cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

from potluck.records import HOME, Device, Plan, Problem, Training
from potluck.schedule.all_reduce import bounds
from potluck.schedule.bubbles import StageTimes
from potluck.schedule.ir import Schedule
from potluck.schedule.policies import policy
from potluck.schedule.step import LOSS_BYTES
from potluck.simulate import cost, equations, flows
from potluck.simulate.engine import COMPUTE, TaskGraph, TaskTimes, run
from potluck.simulate.layout import (
    COPY,
    HOME_PRIORITY,
    INPUT_PART,
    NORMS,
    RUN,
    SEND,
    STEP,
    WEIGHT_PART,
    Handed,
    Shape,
    StepLayout,
    TaskSpec,
    lay_out,
)
from potluck.simulate.memory import held, held_to_reduce
from potluck.simulate.paths import Paths
from potluck.simulate.stage_times import stage_times
from potluck.simulate.time_spans import middle_s, union_s

# Of a stream so many times the requests in flight are simulated: the first fill the pipeline, the
# last drain it. They tell the pace where a device is always busy. Where all wait for links by
# turns, answers come in bursts that even out slowly: of plans drawn at random one in six was more
# than 1 % off, at worst 22 %. Of more requests one in forty is, by less than 2 %.
STREAM_ROUNDS = 5
MANY_REQUESTS = 200
# the pace, in times what the busiest device computes or medium carries, up to which it always does
BUSY = 1.005
# norms of some gradients, each a number: a layer's record does not say of how many
NORMS_BYTES = 64
ITEM_BYTES = 4  # an element of the vector of a step, where float64 is not told from float32
MAX_KEPT = 512  # shapes; a layout of 32 micro-batches takes some 0.3 MB


@dataclass(slots=True)
class _Graph:
    """A layout as the engine takes it, for one or several steps.

    `first[step]` is the number of its first task.
    """

    layout: StepLayout
    graph: TaskGraph
    first: list[int]


def in_flight(plan: Plan) -> int:
    """Requests of a stream that are under way at once: two for each stage, but that neighbouring
    ones on the same devices count as one.
    """
    return 2 + 2 * sum(left.devices != right.devices for left, right in pairwise(plan.stages))


class StepOutcome:
    """What one step (or request of a stream) of a plan would take.

    Energy and memory are worked out when asked for.

    Parameters
    ----------
    direct
        The simulator that it comes from.
    plan
        What was simulated.
    laid
        Its task graph.
    items
        Per item of its layout: work in seconds or bytes, and bytes sent.
    times
        Per task: start, free and stop.
    """

    def __init__(
        self,
        direct: "Direct",
        plan: Plan,
        laid: _Graph,
        items: list[tuple[float, int]],
        times: TaskTimes,
    ) -> None:
        self._direct, self._plan = direct, plan
        self._laid, self._items = laid, items
        self._times = times
        self._joules: dict[str, float] | None = None
        self._peaks: dict[str, int] | None = None
        self.n_steps, self.n_tasks = len(laid.first), len(times.stop_s)
        self.is_settled = True  # more steps would not tell more
        if self.n_steps == 1:
            self.latency_s = max(times.stop_s, default=0.0)
        else:
            self.latency_s, busiest_s = self._steady_s()
            self.is_settled = self.n_steps >= MANY_REQUESTS or self.latency_s <= BUSY * busiest_s

    def _steady_s(self) -> tuple[float, float]:
        """Seconds from one answer to the next, as `simulate.steady_s`, and of each those that the
        busiest device computes or the busiest medium is taken.
        """
        layout, times = self._laid.layout, self._times
        to_home = [layout.items[number].to == layout.home for number in layout.item]
        moves = [layout.items[number].kind == SEND for number in layout.item]
        ends = [
            max(
                (times.free_s if to_home[i] else times.stop_s)[first + i]
                for i in range(len(to_home))
                # else home is where it was made
                if not moves[i] or times.stop_s[first + i] > times.start_s[first + i]
            )
            for first in self._laid.first
        ]
        busy = [0.0] * (layout.home + 1)
        for first in self._laid.first:
            for i, number in enumerate(layout.item):
                if layout.items[number].kind != SEND:
                    busy[layout.items[number].slot] += (
                        times.stop_s[first + i] - times.start_s[first + i]
                    )
        busiest_s = max(max(busy) / self.n_steps, self._busiest_medium_s())
        return max(middle_s(ends, in_flight(self._plan)), busiest_s), busiest_s

    def _busiest_medium_s(self) -> float:
        """Seconds per request for which the busiest medium is taken: while devices still pile up
        what it has not carried yet, answers may come faster than that, but not for long.
        """
        layout, graph = self._laid.layout, self._laid.graph
        taken = [0.0] * len(graph.capacity)
        for task, number in enumerate(layout.item, self._laid.first[0]):
            route = graph.route[task]
            if layout.items[number].kind == SEND and graph.route_host[route] < 0:
                for medium, times in graph.routes[route]:
                    taken[medium] += times * graph.work[task] / graph.capacity[medium]
        return max(taken, default=0.0)

    def device_energy_j(self) -> dict[str, float]:
        """Joules per step of the devices that take part and whose power is known; of a stream once
        it is full: while the first requests fill it and the last drain it more devices wait.
        """
        if self._joules is None:
            self._joules = self._energy_j()
        return self._joules

    def peak_bytes(self) -> dict[str, int]:
        """The most bytes that each device holds at once, as `simulate.memory`."""
        if self._peaks is None:
            self._peaks = self._most_bytes()
        return self._peaks

    def keeps_to(self, most_s: float, budgets: Mapping[str, int] | None) -> bool:
        """Whether it takes no longer, and no more bytes on any device."""
        if self.latency_s > most_s:
            return False
        return budgets is None or all(
            nbytes <= budgets[name] for name, nbytes in self.peak_bytes().items()
        )

    def _energy_j(self) -> dict[str, float]:
        layout, times = self._laid.layout, self._times
        names = self._plan.devices
        busy = [0.0] * (layout.home + 1)
        radio: list[list[tuple[float, float]]] = [[] for _ in busy]
        for first in self._laid.first:
            for i, number in enumerate(layout.item):
                item, task = layout.items[number], first + i
                start, free = times.start_s[task], times.free_s[task]
                stop = times.stop_s[task]
                if item.kind != SEND:
                    busy[item.slot] += stop - start
                elif stop > start:
                    radio[item.slot].append((start, free))
                    radio[item.to].append((start + stop - free, stop))
        elapsed_s, found = self.latency_s * self.n_steps, {}
        for slot, name in enumerate(names):
            joules = equations.energy_j(
                self._direct.devices[name], elapsed_s, busy[slot], union_s(radio[slot])
            )
            if joules is not None:
                found[name] = joules / self.n_steps
        return found

    def _most_bytes(self) -> dict[str, int]:
        layout, times = self._laid.layout, self._times
        plan, table = self._plan, self._direct.table
        changes: list[list[tuple[float, int]]] = [[] for _ in plan.devices]
        transfer = [layout.items[number].kind == SEND for number in layout.item]
        working, kept = self._kept_bytes()
        for first in self._laid.first:
            learned = set[int]()  # runs that had a backward
            for slot, number, made, uses in layout.values:
                gone = times.stop_s[first + made]
                for use in uses:
                    gone = max(gone, (times.free_s if transfer[use] else times.stop_s)[first + use])
                nbytes = self._items[number][1]
                changes[slot] += held(times.start_s[first + made], gone, nbytes)
            for row in layout.kept:
                slot = layout.items[row[0]].slot
                changes[slot] += self._held(first, row, working, kept, learned)
            for number, passed, made, joined, arrived in layout.reductions:
                changes[layout.items[number].slot] += held_to_reduce(
                    self._items[number][1],
                    times.start_s[first + passed],
                    times.start_s[first + made],
                    times.start_s[first + joined],
                    [
                        (times.start_s[first + each], self._items[layout.item[each]][1])
                        for each in arrived
                    ],
                )
        peaks = {}
        for name, events in zip(plan.devices, changes, strict=True):
            events.sort()
            ranges = {(stage.start, stage.stop) for stage in plan.stages if name in stage.devices}
            at_work = max(accumulate((nbytes for _, nbytes in events), initial=0))
            peaks[name] = equations.resting_bytes(table, ranges) + at_work
        return peaks

    def _held(
        self,
        first: int,
        row: tuple[int, int, int, int],
        working: Mapping[int, int],
        kept: Mapping[int, int],
        learned: set[int],
    ) -> list[tuple[float, int]]:
        """When a forward and its backward take and give back how many bytes; `row` of
        `StepLayout.kept`.
        """
        number, forward, backward, late = row
        item = self._laid.layout.items[number]
        table = self._direct.table
        times = self._times
        stage = self._plan.stages[item.stage]

        def between(task: int, last: int, nbytes: int) -> list[tuple[float, int]]:
            return held(times.start_s[first + task], times.stop_s[first + last], nbytes)

        changes = [*between(forward, forward, working[number])]
        if backward >= 0:
            extra_bytes = table.second_gradient_bytes(
                stage.start, stage.stop, first=number not in learned
            )
            learned.add(number)
            changes += between(backward, backward, working[number] + extra_bytes)
            changes += between(forward, backward, kept[number])
        if late >= 0:
            extra_bytes = table.second_gradient_bytes(stage.start, stage.stop, first=False)
            extra_bytes += equations.working_bytes(
                table.of(False), stage.start, stage.stop, item.rows
            )
            waiting = table.waiting_bytes(stage.start, stage.stop) * item.rows
            changes += between(late, late, extra_bytes)
            changes += between(backward, late, waiting)
        return changes

    def _kept_bytes(self) -> tuple[dict[int, int], dict[int, int]]:
        """Per run item: the bytes it works on, and those kept for its backward."""
        layout, stages = self._laid.layout, self._plan.stages
        learns = self._direct.learning(self._plan)
        working, kept = {}, {}
        for number in {number for number, *_ in layout.kept}:
            item = layout.items[number]
            stage = stages[item.stage]
            table = self._direct.table.of(stage.recompute and learns[item.stage])
            working[number] = equations.working_bytes(table, stage.start, stage.stop, item.rows)
            kept[number] = table.kept_bytes(stage.start, stage.stop) * item.rows
            kept[number] += table.copied_bytes(stage.start, stage.stop)
        return working, kept


class Direct:
    """Simulates plans of one problem."""

    def __init__(self, problem: Problem, table: cost.CostTable | None = None) -> None:
        self.problem, self.table = problem, table or cost.CostTable(problem)
        self.devices = {device.name: device for device in problem.devices}
        self.streaming = not isinstance(problem.workload, Training) and problem.workload.streaming
        self.n_simulated = 0  # tasks so far
        self._paths = Paths(problem)
        self._graphs: dict[tuple[Shape, int, int], _Graph] = {}
        self._learning: dict[tuple[int, ...], tuple[bool, ...]] = {}

    @property
    def n_layouts(self) -> int:
        """How many layouts are kept."""
        return len(self._graphs)

    def run(
        self, plan: Plan, most_s: float = inf, budgets: Mapping[str, int] | None = None
    ) -> StepOutcome:
        """Simulate one step of `plan`, or some requests in flight when they stream.

        The plan must suit the problem. Of streams that seem to take longer than `most_s`, or more
        than `budgets`, the pace need not be exact.

        Parameters
        ----------
        plan
            To be carried out.
        most_s
            Plans that take longer are of no use to who asks.
        budgets
            Nor plans that hold more bytes on a device.
        """
        few = self._n_steps(plan)
        outcome = self._outcome(plan, few)
        if outcome.is_settled or not outcome.keeps_to(most_s, budgets):
            return outcome
        return self._outcome(plan, max(few, MANY_REQUESTS))

    def _outcome(self, plan: Plan, n_steps: int) -> StepOutcome:
        laid, items = self._filled(plan, n_steps)
        outcome = StepOutcome(self, plan, laid, items, run(laid.graph))
        self.n_simulated += outcome.n_tasks
        return outcome

    def graph(self, plan: Plan) -> TaskGraph:
        """The tasks of `plan` for the engine.

        The same object is filled anew for the next plan of this shape.
        """
        return self._filled(plan, self._n_steps(plan))[0].graph

    def _n_steps(self, plan: Plan) -> int:
        return STREAM_ROUNDS * in_flight(plan) if self.streaming else 1

    def _filled(self, plan: Plan, n_steps: int) -> tuple[_Graph, list[tuple[float, int]]]:
        window = in_flight(plan) if self.streaming else 1
        laid = self._graph(self._shape(plan), n_steps, window)
        graph = laid.graph
        layout = laid.layout
        devices = plan.devices
        on = [self.devices[name] for name in devices]
        items = [self._priced(plan, on, item) for item in layout.items]
        names = (*devices, HOME)
        self._paths.place(graph, devices)
        work, route = [], []
        for item, (amount, _) in zip(layout.items, items, strict=True):
            work.append(amount)
            if item.kind == SEND:
                route.append(self._paths.route(names[item.slot], names[item.to]))
            else:
                route.append(COMPUTE)
        graph.work, graph.route = [work[i] for i in layout.item], [route[i] for i in layout.item]
        if n_steps > 1:
            step_work, step_route = [0.0, *graph.work, 0.0], [COMPUTE, *graph.route, COMPUTE]
            graph.work, graph.route = step_work * n_steps, step_route * n_steps
        return laid, items

    def _shape(self, plan: Plan) -> Shape:
        slot = {name: i for i, name in enumerate(plan.devices)}
        handed, learns = self.table.handed(plan.stages), self.learning(plan)
        shared = self._shared(plan)
        holders = sorted({p for stages in shared for p in stages})
        return Shape(
            slots=tuple(tuple(slot[name] for name in stage.devices) for stage in plan.stages),
            shares=tuple(stage.shares for stage in plan.stages),
            warm_up=tuple(stage.warm_up for stage in plan.stages),
            counts=plan.counts,
            training=plan.training,
            handed=tuple(
                tuple(
                    Handed(b.to, b.gradient_bytes > 0, b.output_bytes > b.gradient_bytes)
                    for b in given
                )
                for given in handed
            ),
            learns=learns if plan.training else (False,) * len(plan.stages),
            fed=tuple(
                flows.feed_bytes(self.problem, stage.start, stage.stop) > 0 for stage in plan.stages
            ),
            has_target=plan.training and self.problem.target_bytes > 0,
            n_elements=tuple(
                min(self._n_elements(plan, p), len(s.devices)) for p, s in enumerate(plan.stages)
            ),
            schedule=self._schedule(plan),
            limited=plan.training and cost.is_clipped(self.problem),
            shared=shared,
            only_shared=tuple(p for p in holders if not self._rest_bytes(plan, p, shared)),
        )

    def _shared(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """The stages that hold each shared parameter of several."""
        if not plan.training:
            return ()
        found = [
            tuple(
                p
                for p, stage in enumerate(plan.stages)
                if any(stage.start <= i < stage.stop for i in layers)
            )
            for layers in self.table.shared_layers
        ]
        return tuple(holders if len(holders) > 1 else () for holders in found)

    def _rest_bytes(self, plan: Plan, p: int, shared: Sequence[Sequence[int]]) -> int:
        """Of the vector of stage p, what no other stage holds."""
        pairs = zip(shared, self.table.shared_bytes, strict=True)
        shared_bytes = sum(nbytes for holders, nbytes in pairs if p in holders)
        return self._n_elements(plan, p) * ITEM_BYTES - shared_bytes

    def _schedule(self, plan: Plan) -> Schedule:
        """The order of a plan that names one; none stands for the usual."""
        if not plan.schedule:
            return ()
        by_name = policy(plan.schedule, training=plan.training, times=self._times)
        return by_name(plan)

    def _times(self, plan: Plan) -> StageTimes:
        return stage_times(self.table, plan)

    def learning(self, plan: Plan) -> tuple[bool, ...]:
        """Per stage, whether a gradient comes back to it."""
        starts = tuple(stage.start for stage in plan.stages)
        if starts not in self._learning:
            self._learning[starts] = flows.learning(self.table.handed(plan.stages))
        return self._learning[starts]

    def _n_elements(self, plan: Plan, p: int) -> int:
        """Of the vector of stage p: statistics, and where it learns gradients."""
        start, stop = plan.stages[p].start, plan.stages[p].stop
        learns, table = self.learning(plan)[p], self.table
        gradient_bytes = table.summed_bytes(start, stop) if learns else 0
        return gradient_bytes // ITEM_BYTES + table.averaged_bytes(start, stop) // ITEM_BYTES

    def _graph(self, shape: Shape, n_steps: int, in_flight: int) -> _Graph:
        if n_steps > STREAM_ROUNDS * in_flight:  # too large to keep
            return _graph(lay_out(shape), n_steps, in_flight, self._paths.graph())
        key = shape, n_steps, in_flight
        if key not in self._graphs:
            if len(self._graphs) >= MAX_KEPT:
                self._graphs.clear()
            self._graphs[key] = _graph(lay_out(shape), n_steps, in_flight, self._paths.graph())
        return self._graphs[key]

    def _priced(self, plan: Plan, devices: Sequence[Device], item: TaskSpec) -> tuple[float, int]:
        """Seconds (bytes for a transfer) of an item, and the bytes of the value that goes with
        it. `devices`: one per slot.
        """
        stage, table = plan.stages[item.stage], self.table
        if item.kind == SEND or item.kind == COPY:
            nbytes = self._nbytes(plan, item)
            if item.kind == SEND:
                return nbytes, nbytes
            return equations.copy_s(devices[item.slot], nbytes), nbytes
        device = devices[item.slot]
        if item.kind == STEP:
            return equations.update_s(table, device, stage.start, stage.stop), 0
        if item.kind == NORMS:
            return equations.norms_s(table, device, stage.start, stage.stop), NORMS_BYTES
        place = device.name, stage.start, stage.stop, item.rows
        if item.kind == RUN:
            return device.overhead_s + table.forward_s(*place), 0
        if item.kind == WEIGHT_PART:
            return device.overhead_s + table.weight_s(*place), 0
        later_s = table.weight_s(*place) if item.kind == INPUT_PART else 0.0
        return device.overhead_s + table.of(stage.recompute).backward_s(*place) - later_s, 0

    def _nbytes(self, plan: Plan, item: TaskSpec) -> int:
        problem, stage = self.problem, plan.stages[item.stage]
        tensor = item.tensor
        if tensor in ("y", "z"):
            _, output_bytes, gradient_bytes = self.table.handed(plan.stages)[item.stage][item.group]
            return item.rows * (gradient_bytes if tensor == "y" else output_bytes - gradient_bytes)
        if tensor in ("vector", "piece"):
            n_elements, n = self._n_elements(plan, item.stage), len(stage.devices)
            if tensor == "vector":
                return n_elements * ITEM_BYTES
            starts = bounds(n_elements, n)
            return (starts[item.rows + 1] - starts[item.rows]) * ITEM_BYTES
        if tensor == "loss":
            return item.rows * LOSS_BYTES
        if tensor == "tied":
            return self.table.shared_bytes[item.rows]
        if tensor == "rest":
            return self._rest_bytes(plan, item.stage, self._shared(plan))
        if tensor in ("norms", "norm", "scale"):
            return NORMS_BYTES if tensor == "norms" else ITEM_BYTES
        if tensor == "input":
            return item.rows * flows.feed_bytes(problem, stage.start, stage.stop)
        per_row = {"target": problem.target_bytes, "output": problem.result_bytes}
        return item.rows * per_row[tensor]


def _graph(layout: StepLayout, n_steps: int, in_flight: int, graph: TaskGraph) -> _Graph:
    """`n_steps` times the layout, at most `in_flight` at once.

    Several are each between a task of begin and of end.
    """
    resources = [2 * layout.items[i].slot + (layout.items[i].kind == SEND) for i in layout.item]
    priority, n_waits = [*layout.priority], [len(waits) for waits in layout.waits]
    n_tasks, first = len(resources), [0]
    followers = [list[int]() for _ in resources]
    for task, waits in enumerate(layout.waits):
        for before in waits:
            followers[before].append(task)
    if n_steps > 1:
        idle, size = 2 * layout.home, n_tasks + 2
        first = [1 + step * size for step in range(n_steps)]
        since = [HOME_PRIORITY * (resource == idle + 1) for resource in resources]
        pairs = list(zip(priority, since, strict=True))
        priority = [p for step in range(n_steps) for p in (0, *(a + step * b for a, b in pairs), 0)]
        ready = [task for task, n in enumerate(n_waits) if not n]
        n_sinks = sum(not row for row in followers)
        n_waits = [0, *(n or 1 for n in n_waits), n_sinks] * n_steps
        # an end lets the request begin that is so many behind
        rows = [ready, *(row or [n_tasks] for row in followers), [in_flight * size - 1]]
        followers = [[at + task for task in row] for at in first for row in rows]
        for step in range(in_flight, n_steps):
            n_waits[step * size] = 1
        for step in range(max(0, n_steps - in_flight), n_steps):
            followers[(step + 1) * size - 1] = []
        resources = [idle, *resources, idle] * n_steps
    graph.resource, graph.priority = resources, priority
    graph.n_waits, graph.followers = n_waits, [*map(tuple, followers)]
    graph.work, graph.route = [0.0] * len(resources), [COMPUTE] * len(resources)
    return _Graph(layout, graph, first)
