"""When each transfer is sent over the media that devices share, so that a step is over soonest.

Dora (section 4.2) adds the transfers to the graph of computations and asks for start times and
bandwidths (eq. 6). As printed that is not linear: duration times bandwidth is constant, and "at
every moment" ranges over unknown intervals. But on one medium whatever sharing achieves, taking
turns achieves no later, so what is left to decide is the order. A list scheduler decides it: of the
transfers whose media are free, the one with the longest way to the end of the step goes first. On
pipelines of 4 stages it is 0 to 2 % from the optimum, and fair sharing 2 to 14 %.

Access points cannot be told an order. So every send gets a priority, which holds among the sends
of its device; a release time where it has to let another device go first; and a pace, so that what
waits does so where it can still be overtaken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.contention import cp_sat, list_scheduler
from potluck.records import Problem, Training
from potluck.schedule.program_builder import Compiled
from potluck.simulate.cost import CostTable
from potluck.simulate.engine import COMPUTE, TaskGraph, TaskTimes
from potluck.simulate.predict import predict_steps
from potluck.simulate.programs import ProgramSimulation

# of what the path was measured to carry: never the brake, and yet at most a fifth too much in
# buffers
PACE_FRAC = 1.25
SHORT_S = 0.005  # what is over that soon keeps nobody waiting
SOONER_S = 1e-9
# beginning together costs a round trip and waits for the slowest: not for less than that
WORTH_FRAC = 0.02
# How much longer computing and transfers may last than predicted before they collide: one that
# begins before the one ahead is over makes both late. In a WiFi lab they lasted 1.03 and 1.04 to
# 1.25 times as long.
SLACK = (1.02, 1.08)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """The communication-expanded graph of one step: its tasks, and which task each instruction
    is.
    """

    graph: TaskGraph
    # (device, instruction id) -> task; a receive is the task of its send
    tasks: dict[tuple[str, int], int]

    @property
    def order(self) -> TaskTimes:
        """Turns: the soonest of three rules.

        Together they were 0 to 1.5 % from the optimum, each alone up to 15 %.
        """
        tails = list_scheduler.tails(self.graph)
        return min(
            # of what is ready, the longest way to the end first
            list_scheduler.run(self.graph, tails),
            list_scheduler.run(self.graph),  # of what is ready, by the programs' priorities
            # the longest way first, even if it is not ready yet
            list_scheduler.insert(self.graph, tails),
            key=lambda times: max(times.stop_s),
        )


def expand(compiled: Compiled, problem: Problem, table: CostTable | None = None) -> Expanded:
    """The graph of one step of these programs.

    In training the inputs of a step travel during the one before.

    Parameters
    ----------
    compiled
        The programs of a step.
    problem
        Costs and network.
    table
        Of the problem, if there is one already.
    """
    simulation = ProgramSimulation(compiled, problem, 1, 1, table)
    if isinstance(problem.workload, Training):
        for device, program in compiled.programs.items():
            for item in program.instructions:
                if item.op == "recv" and item.attrs["peer"] == compiled.home:
                    simulation.graph.work[simulation.tasks[0][device, item.id]] = 0.0
    return Expanded(graph=simulation.graph, tasks=simulation.tasks[0])


def with_slack(graph: TaskGraph, computing: float, transfers: float) -> TaskGraph:
    """The same tasks, all of them so many times as long.

    Parameters
    ----------
    graph
        The tasks.
    computing
        Factor for tasks that compute.
    transfers
        Factor for transfers.
    """
    return replace(
        graph,
        work=[
            w * (computing if r == COMPUTE else transfers)
            for w, r in zip(graph.work, graph.route, strict=True)
        ],
    )


def schedule_transfers(
    compiled: Compiled,
    problem: Problem,
    start_s: Sequence[float] | None = None,
    *,
    slack: tuple[float, float] = SLACK,
    refine_s: float = 0.0,
) -> Compiled:
    """The programs with priority, release time and pace of every send. `start_s`: of every task;
    default: by the list scheduler, which CP-SAT may better for `refine_s` seconds (needs ortools).

    `slack`: starts leave room for computing and transfers that last so many times as long as the
    profile says. A send that in this order leaves as soon as its value is there has no release: if
    it is ready sooner than predicted, nobody is in its way.

    Dora, section 4.2.

    Parameters
    ----------
    compiled
        The programs of a step.
    problem
        Costs and network.
    start_s
        Per task; default: by the list scheduler.
    slack
        Factors for computing and for transfers.
    refine_s
        Seconds that CP-SAT may take for a better order.
    """
    expanded = expand(compiled, problem)
    expanded = replace(expanded, graph=with_slack(expanded.graph, *slack))
    starts = start_s if start_s is not None else _starts(expanded, refine_s)
    ready_s = _ready_s(expanded.graph, starts)
    place = {
        task: place
        for place, task in enumerate(sorted(range(len(starts)), key=lambda t: (starts[t], t)))
    }
    programs = {}
    for device, program in compiled.programs.items():
        sends = {
            item.id: expanded.tasks[device, item.id]
            for item in program.instructions
            if item.op == "send"
        }
        programs[device] = replace(
            program,
            instructions=tuple(
                replace(item, priority=place[sends[item.id]]) if item.id in sends else item
                for item in program.instructions
            ),
            release_s=tuple(
                starts[sends[item.id]]
                if item.id in sends and starts[sends[item.id]] > ready_s[sends[item.id]]
                else 0.0
                for item in program.instructions
            ),
        )
    return one_at_a_time(replace(compiled, programs=programs), problem)


def by_priority(ordered: Compiled) -> Compiled:
    """The same programs without releases: the order holds only among the sends of each device."""
    programs = {
        device: replace(program, release_s=()) for device, program in ordered.programs.items()
    }
    return replace(ordered, programs=programs)


def with_ordered_transfers(
    compiled: Compiled, problem: Problem, *, always: bool = False, refine_s: float = 0.0
) -> Compiled:
    """The programs with transfers that take turns on shared media, where that ends a step sooner
    (or `always`).

    Where releases would cost more than the order saves, the order may hold by priorities
    alone. `refine_s`: so long an exact solver may look for a better order, which is taken where the
    simulator finds it so.

    Parameters
    ----------
    compiled
        The programs of a step.
    problem
        Costs and network.
    always
        Also where it ends no step sooner.
    refine_s
        Seconds that CP-SAT may take for a better order.
    """
    if len(compiled.programs) < 2:
        return compiled

    def soonest(*ways: Compiled) -> tuple[float, Compiled]:
        return min(
            ((max(predict_steps(way, problem).step_s), way) for way in ways),
            key=lambda pair: pair[0],
        )

    refined = (schedule_transfers(compiled, problem, refine_s=refine_s),) if refine_s > 0 else ()
    ordered_s, ordered = soonest(schedule_transfers(compiled, problem), *refined)
    if always:
        return ordered
    free_s, free = soonest(compiled, by_priority(ordered))
    return ordered if ordered_s < (1 - WORTH_FRAC) * free_s else free


def _starts(expanded: Expanded, refine_s: float) -> Sequence[float]:
    """When each task starts where transfers are ordered."""
    order = expanded.order
    return (
        cp_sat.solve(expanded.graph, order, limit_s=refine_s).start_s
        if refine_s > 0
        else order.start_s
    )


def _ready_s(graph: TaskGraph, start_s: Sequence[float]) -> list[float]:
    """When all that each task waits for is over, if every task starts when this schedule says."""
    ready = [0.0] * len(start_s)
    for task, followers in enumerate(graph.followers):
        for follower in followers:
            ready[follower] = max(
                ready[follower], start_s[task] + list_scheduler.alone_s(graph, task) + SOONER_S
            )
    return ready


def one_at_a_time(compiled: Compiled, problem: Problem) -> Compiled:
    """The programs with a pace for every send, so that what a device sends leaves in the order of
    priorities.

    Without, all that is ready would be on its way at once, and all of it late.
    """
    programs = {
        device: replace(
            program,
            pace_bytes_per_s=tuple(
                _pace(problem, device, item.attrs["peer"], compiled.notes[device][item.id].nbytes)
                if item.op == "send"
                else 0.0
                for item in program.instructions
            ),
        )
        for device, program in compiled.programs.items()
    }
    return replace(compiled, programs=programs)


def _pace(problem: Problem, source: str, target: str, nbytes: int) -> float:
    if (source, target) not in problem.network.paths:
        return 0.0
    bytes_per_s = problem.network.bandwidth(source, target)
    return PACE_FRAC * bytes_per_s if nbytes > SHORT_S * bytes_per_s else 0.0
