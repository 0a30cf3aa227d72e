"""Execute compiled programs under virtual time: the same instructions that the agents carry out, a
Trace out.

One compute resource and one sending resource per device, and one sending resource for home. Where
the network knows no path from or to home, inputs and results are already where they are needed.
"""

from collections.abc import Mapping
from functools import cached_property

from potluck.records import HOME, Event, Problem, Trace
from potluck.schedule.program_builder import Compiled
from potluck.simulate import cost, equations
from potluck.simulate.duration import instruction_s
from potluck.simulate.engine import TaskTimes, run
from potluck.simulate.layout import HOME_PRIORITY
from potluck.simulate.memory import peak_bytes
from potluck.simulate.paths import Paths
from potluck.simulate.time_spans import Span, middle_s, union_s
from potluck_wire.program import NETWORK, Instruction


def simulate(
    compiled: Compiled,
    problem: Problem,
    *,
    steps: int = 1,
    in_flight: int = 1,
    serial: bool = False,
) -> Trace:
    """What `steps` executions of the programs do, of which at most `in_flight` run at once (1: one
    after the other).

    `serial`: a device begins a step only when it has ended the one before, as training must; others
    may be ahead. Events of all resources, seconds per step, busy seconds, joules and peak bytes per
    device. Energy covers the devices that take part and whose power is known, from the start to the
    end of the last step.

    Parameters
    ----------
    compiled
        The programs of all devices.
    problem
        Costs, network and powers.
    steps
        How often they are executed.
    in_flight
        Executions at once.
    serial
        A device ends a step before it begins the next, as in training.
    """
    return ProgramSimulation(compiled, problem, steps, in_flight, serial=serial).trace()


class ProgramSimulation:
    """One simulation: the task graph of all steps, and the trace read off its times once they are
    wanted.

    Parameters
    ----------
    compiled
        The programs of all devices.
    problem
        Costs, network and powers.
    steps
        How often they are executed.
    in_flight
        Executions at once.
    table
        Of the problem, if there is one already.
    serial
        A device ends a step before it begins the next, as in training.
    """

    def __init__(
        self,
        compiled: Compiled,
        problem: Problem,
        steps: int,
        in_flight: int,
        table: cost.CostTable | None = None,
        *,
        serial: bool = False,
    ) -> None:
        self.compiled, self.problem = compiled, problem
        self.home = compiled.home
        self.table = table or cost.CostTable(problem)
        self.devices = {name: problem.device(name) for name in compiled.programs}
        names = (*compiled.programs, self.home)
        self.compute_resource = {name: 2 * i for i, name in enumerate(names)}
        self.send_resource = {name: 2 * i + 1 for i, name in enumerate(names)}
        self.paths = Paths(problem, self.home)
        self.graph = self.paths.graph()
        self.paths.place(self.graph, [*compiled.programs])
        # Per step: (device, instruction id) -> task; a `recv` is the task of its `send`.
        self.tasks: list[dict[tuple[str, int], int]] = []
        # per step: the tasks that stand for its start and its end
        self.marks: list[tuple[int, int]] = []
        for step in range(steps):
            self._add_step(step, in_flight, serial)

    @cached_property
    def times(self) -> TaskTimes:
        """When each task takes place, media shared fairly."""
        return run(self.graph)

    # --- the task graph ---------------------------------------------------------------------------

    def _add_step(self, step: int, in_flight: int, serial: bool) -> None:
        graph, first = self.graph, step * HOME_PRIORITY
        idle = self.compute_resource[self.home]
        before = [self.marks[step - in_flight][1]] if step >= in_flight else []
        begin = origin = graph.add(idle, 0.0, after=before, priority=first)
        # requests at once: the first
        ordered = self.compiled.together and (serial or in_flight == 1 or not step)
        if step and ordered:
            origin = graph.add(idle, 0.0, after=[begin, self.marks[-1][1]], priority=first)
        tasks, arrivals = self._add_instructions(begin)
        for device, program in self.compiled.programs.items():
            producers: dict[str, int] = {}
            ended = (
                sorted(t for (name, _), t in self.tasks[-1].items() if name == device)
                if serial and step
                else []
            )
            for item in program.instructions:
                if item.op == "recv":
                    tasks[device, item.id] = arrivals[item.attrs["peer"], device, item.outputs[0]]
                for value in item.outputs:
                    producers[value] = tasks[device, item.id]
            for item in program.instructions:
                if item.op == "recv":
                    continue
                task = tasks[device, item.id]
                waits = {producers[value] for value in item.inputs} | {
                    tasks[device, i] for i in item.after
                } or {origin}
                if not item.after and item.op != "send":
                    waits.update(ended)
                if ordered and program.release_s and program.release_s[item.id]:
                    waits.add(self._timer(origin, program.release_s[item.id]))
                for other in sorted(waits):
                    graph.wait(task, other)
        end = graph.add(
            idle, 0.0, after=sorted({*tasks.values(), *arrivals.values(), begin}), priority=first
        )
        self.tasks.append(tasks)
        self.marks.append((begin, end))

    def _add_instructions(
        self, begin: int
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, str, str], int]]:
        """A task for each instruction of one step but `recv`, by device and instruction id; and
        those that bring a value, by sender, receiver and the value's name.
        """
        tasks: dict[tuple[str, int], int] = {}
        arrivals: dict[tuple[str, str, str], int] = {}
        first = len(self.tasks) * HOME_PRIORITY
        for feed in self.compiled.feeds:
            arrivals[self.home, feed.device, feed.value] = self.graph.add(
                self.send_resource[self.home],
                feed.nbytes,
                after=[begin],
                priority=first + feed.priority,
                route=self.paths.route(self.home, feed.device),
            )
        for device, program in self.compiled.programs.items():
            for item in program.instructions:
                if item.op != "recv":
                    task = self._add_task(device, item)
                    tasks[device, item.id] = task
                    if item.op == "send":
                        arrivals[device, item.attrs["peer"], item.attrs["name"]] = task
        return tasks, arrivals

    def _add_task(self, device: str, item: Instruction) -> int:
        note = self.compiled.notes[device][item.id]
        if item.op == "send":
            route = self.paths.route(device, item.attrs["peer"])
            return self.graph.add(
                self.send_resource[device], note.nbytes, priority=item.priority, route=route
            )
        seconds = instruction_s(self.table, self.devices[device], item, note)
        return self.graph.add(self.compute_resource[device], seconds, priority=item.priority)

    def _timer(self, since: int, seconds: float) -> int:
        """A task that is done so long after task `since` and keeps no resource: the latency of a
        path without media.
        """
        return self.graph.add(
            self.send_resource[self.home] + 1,
            0.0,
            after=[since],
            route=self.graph.add_route((), seconds),
        )

    # --- the trace --------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """All events, times, joules and peaks of the simulated steps."""
        times, events = self.times, self._events()
        stop_s = max(times.stop_s, default=0.0)
        busy = dict.fromkeys(self.devices, 0.0)
        for event in events:
            if event.lane == "compute":
                busy[event.device] += event.stop_s - event.start_s
        energy = {}
        for name, device in self.devices.items():
            radio = union_s(
                [(e.start_s, e.stop_s) for e in events if e.device == name and e.lane != "compute"]
            )
            joules = equations.energy_j(device, stop_s, busy[name], radio)
            if joules is not None:
                energy[name] = joules
        return Trace(
            source="predicted",
            events=events,
            step_s=tuple(times.stop_s[end] - times.start_s[begin] for begin, end in self.marks),
            busy_s=busy,
            energy_j=energy,
            energy_source={name: self.devices[name].power_mark for name in energy},
            peak_bytes={
                name: peak_bytes(self.table, self.compiled, name, self._spans(name, times))
                for name in self.devices
            },
        )

    def _spans(self, device: str, times: TaskTimes) -> list[Mapping[int, Span]]:
        """Per step, when each instruction of `device` took place."""
        spans: list[Mapping[int, Span]] = []
        for tasks in self.tasks:
            step: dict[int, Span] = {}
            for item in self.compiled.programs[device].instructions:
                task = tasks[device, item.id]
                stop = times.free_s[task] if item.op == "send" else times.stop_s[task]
                step[item.id] = times.start_s[task], stop
            spans.append(step)
        return spans

    def _events(self) -> tuple[Event, ...]:
        times, events = self.times, []
        for step, tasks in enumerate(self.tasks):
            for device, program in self.compiled.programs.items():
                for item in program.instructions:
                    task, note = tasks[device, item.id], self.compiled.notes[device][item.id]
                    if item.op in NETWORK and times.stop_s[task] <= times.start_s[task]:
                        continue  # between home and a device where no path is known
                    lag = times.stop_s[task] - times.free_s[task] if item.op in NETWORK else 0.0
                    lane = {"send": "send", "recv": "receive"}.get(item.op, "compute")
                    event = Event(
                        device=device,
                        lane=lane,
                        start_s=times.start_s[task] + (lag if lane == "receive" else 0.0),
                        stop_s=times.stop_s[task] - (lag if lane == "send" else 0.0),
                        label=note.label,
                        op=item.op,
                        step=step,
                        instruction=item.id,
                        peer=item.attrs["peer"] if item.op in NETWORK else "",
                        nbytes=note.nbytes if item.op in NETWORK else 0,
                    )
                    events.append(event)
        return tuple(
            sorted(events, key=lambda e: (e.start_s, e.device, e.lane, e.instruction, e.step))
        )


def steady_s(trace: Trace, in_flight: int = 1, problem: Problem | None = None) -> float:
    """Seconds from one answer to the next once the pipeline is full and before it drains
    (`middle_s`).

    Parameters
    ----------
    trace
        Of requests that overlap.
    in_flight
        Requests under way at once.
    problem
        What was simulated: no pace lasts at which one of its media cannot keep up.
    """
    ends: dict[int, float] = {}
    for event in trace.events:
        ends[event.step] = max(ends.get(event.step, 0.0), event.stop_s)
    # nor one at which a device cannot
    busy_s = [*trace.busy_s.values(), *_taken_s(trace, problem)]
    return max(middle_s(list(ends.values()), in_flight), max(busy_s, default=0.0) / len(ends))


def _taken_s(trace: Trace, problem: Problem | None) -> list[float]:
    """Seconds for which all that was sent takes each medium; inside a host it takes a processor."""
    if problem is None:
        return []
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in problem.network.media}
    hosts = {device.host for device in problem.devices if device.host_cores}
    taken = dict.fromkeys(capacity, 0.0)
    for event in trace.events:
        if event.lane == "receive":
            path = problem.network.path(event.peer, event.device)
        elif event.lane == "send" and event.peer == HOME:
            path = problem.network.path(event.device, HOME)
        else:
            continue
        for name, times in path.media if path.host not in hosts else ():
            taken[name] += times * event.nbytes / capacity[name]
    return [*taken.values()]
