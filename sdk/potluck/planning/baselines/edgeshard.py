"""EdgeShard: contiguous shards on some of the devices in any order, no replicas, by dynamic
programming.

Zhang et al., "EdgeShard", 2024 (arXiv 2405.14371): one program minimises the latency of a request,
the sum of computing and sending; another the slowest stage of a pipeline, over (layers done,
devices used, last device).

Where we differ: one program over sets serves both objectives (a device holds one shard). Training,
which the paper has not, takes the latter with forward and backward; links are between two devices
alone, as in the paper. The source need not be the first device.
"""

from collections.abc import Iterator
from math import inf

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import build
from potluck.planning.building_blocks.closed_form import request_s
from potluck.planning.building_blocks.stages import estimate_of
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost, footprint

MAX_DEVICES = 8  # 2^n sets; the fastest beyond

State = tuple[float, tuple[int, ...], tuple[str, ...]]  # objective, bounds, devices in order


def plan_edgeshard(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """The best pipeline of every set of devices, for every micro-batch size."""
    table = table or cost.CostTable(problem)
    stop = len(problem.layers)
    names = sorted(
        (d.name for d in problem.devices), key=lambda name: table.forward_s(name, 0, stop, 1)
    )[:MAX_DEVICES]
    for micro_batch in candidates.micro_batches(problem):
        for _, bounds, order in best_chains(table, names, micro_batch):
            plan = build(table, "edgeshard", bounds, [(name,) for name in order], micro_batch)
            if plan is not None:
                yield plan


def best_chains(table: cost.CostTable, names: list[str], micro_batch: int) -> list[State]:
    """The best pipeline of every set of these devices, the best objective first; none at or beyond
    the table's limit.

    Parameters
    ----------
    table
        The problem's costs.
    names
        The devices.
    micro_batch
        Rows of a micro-batch.

    Returns
    -------
    list of State
        Seconds by the paper's objective, bounds of the stages, and devices in order.
    """
    problem = table.problem
    training = isinstance(problem.workload, Training)
    n_micro_batches = problem.workload.batch // micro_batch
    summed = estimate_of(problem) is request_s and n_micro_batches == 1
    places, network = candidates.cuts(problem, 16), problem.network
    budgets = {name: cost.budget_bytes(problem, problem.device(name)) for name in names}
    # (place, set of devices, last device) -> the best way there
    states: list[dict[tuple[int, str], State]] = [{} for _ in places]
    states[0][0, ""] = 0.0, (0,), ()
    for i in range(len(places) - 1):
        for (used, last), (value, bounds, order) in states[i].items():
            layer = problem.layers[places[i] - 1]
            for d, name in enumerate(names):
                if used >> d & 1:
                    continue
                sent = 0.0
                if last:
                    nbytes = layer.output_bytes + (layer.gradient_bytes if training else 0)
                    sent = micro_batch * nbytes / network.bandwidth(last, name) + network.latency(
                        last, name
                    )
                for j in range(i + 1, len(places)):
                    start, stop = places[i], places[j]
                    need = footprint.memory_bytes(
                        table, start, stop, micro_batch, warm_up=1, n_micro_batches=n_micro_batches
                    )
                    if need > budgets[name]:
                        break
                    work = table.compute_s(name, start, stop, micro_batch)
                    reached = value + sent + work if summed else max(value, sent, work)
                    if reached * n_micro_batches >= table.limit_s:
                        break
                    key = used | 1 << d, name
                    if reached < states[j].get(key, (inf,))[0]:
                        states[j][key] = reached, (*bounds, stop), (*order, name)
    best_by_set: dict[int, State] = {}
    for (used, _), state in states[-1].items():
        if used not in best_by_set or state < best_by_set[used]:
            best_by_set[used] = state
    return sorted(best_by_set.values())
