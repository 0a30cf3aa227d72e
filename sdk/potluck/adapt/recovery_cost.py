"""How long a run that has lost a device takes to go on: predicted from what has to be sent and
computed again. Pure.
"""

from collections.abc import Collection, Sequence

from potluck.records import HOME, Plan, Problem, Training


def migration_s(plan: Plan, problem: Problem, holders: Sequence[Collection[str]] = ()) -> float:
    """Seconds until every device has its weights, and what the optimizer keeps.

    What a device has it keeps; the rest is sent by another one that has it, or else from home. All
    send at once, so the busiest medium decides.

    Parameters
    ----------
    plan
        The run goes on with it.
    problem
        With its layers, devices and network.
    holders
        Of each layer, the devices that have its state; default: none has any.
    """
    workload, network = problem.workload, problem.network
    copies = workload.kept_copies if isinstance(workload, Training) else 0
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
    busy_s = dict.fromkeys(capacity, 0.0)
    sent: dict[str, int] = {}
    late_s = 0.0
    for stage in plan.stages:
        for index in range(stage.start, stage.stop):
            layer = problem.layers[index]
            nbytes = layer.parameter_bytes + layer.buffer_bytes
            nbytes += copies * (layer.parameter_bytes - layer.frozen_bytes)
            having = holders[index] if holders else ()
            for device in (name for name in stage.devices if name not in having):
                giver = min(having, key=lambda name: (sent.get(name, 0), name), default=HOME)
                if nbytes == 0 or (giver, device) not in network.paths:
                    continue
                sent[giver] = sent.get(giver, 0) + nbytes
                path = network.path(giver, device)
                late_s = max(late_s, path.latency_s)
                for medium, times in path.media:
                    busy_s[medium] += times * nbytes / capacity[medium]
    return late_s + max(busy_s.values(), default=0.0)


def recovery_s(
    plan: Plan, problem: Problem, n_again: int, holders: Sequence[Collection[str]] = ()
) -> float:
    """Seconds from when this plan is chosen to the end of the next step that is new.

    Parameters
    ----------
    plan
        The run goes on with it; judged, so that its latency is known.
    problem
        With its layers, devices and network.
    n_again
        Steps since the snapshot.
    holders
        As for `migration_s`.
    """
    return migration_s(plan, problem, holders) + (n_again + 1) * (plan.latency_s or 0.0)
