"""How long a run that has lost a device takes to go on: foretold from what has to be sent and
computed again. Pure.
"""

from potluck.records import HOME, Plan, Problem, Training


def load_s(plan: Plan, problem: Problem) -> float:
    """Seconds until every device has its weights, and what the optimizer keeps, from home.

    All devices are sent to at once, so the busiest medium decides.

    Parameters
    ----------
    plan
        The run goes on with it.
    problem
        With its layers, devices and network.
    """
    workload, network = problem.workload, problem.network
    copies = workload.optimizer_copies if isinstance(workload, Training) else 0
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
    busy_s = dict.fromkeys(capacity, 0.0)
    late_s = 0.0
    for stage in plan.stages:
        layers = problem.layers[stage.start : stage.stop]
        learned = sum(layer.parameter_bytes - layer.frozen_bytes for layer in layers)
        held = sum(layer.parameter_bytes + layer.buffer_bytes for layer in layers)
        for device in (name for name in stage.devices if (HOME, name) in network.paths):
            path = network.path(HOME, device)
            late_s = max(late_s, path.latency_s)
            for medium, times in path.media:
                busy_s[medium] += times * (held + copies * learned) / capacity[medium]
    return late_s + max(busy_s.values(), default=0.0)


def recovery_s(plan: Plan, problem: Problem, n_again: int) -> float:
    """Seconds from the loss to the end of the next step that is new.

    Parameters
    ----------
    plan
        The run goes on with it; judged, so that its latency is known.
    problem
        With its layers, devices and network.
    n_again
        Steps since the snapshot.
    """
    return load_s(plan, problem) + (n_again + 1) * (plan.latency_s or 0.0)
