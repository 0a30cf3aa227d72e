"""The engine in its slow, clear form: rates worked out anew at every change.

The oracle of the fast one.
"""

from heapq import heappop, heappush

from potluck.simulate.engine import COMPUTE, TaskTimes
from potluck.simulate.fairness import max_min_rates, processor_rate


def run(graph):
    """Carry out all tasks of a graph that can be carried out."""
    n_tasks = len(graph.resource)
    n_waits = graph.n_waits.copy()
    n_resources = max(graph.resource, default=-1) + 1
    ready = [[] for _ in range(n_resources)]
    doing = [-1] * n_resources  # the task that has the resource
    remaining = [_amount(graph, task) for task in range(n_tasks)]  # of what has given way
    times = TaskTimes([-1.0] * n_tasks, [0.0] * n_tasks, [0.0] * n_tasks)
    ends = []  # (time, task, 1 when its resource is already free)
    rest = {}  # flows under way -> bytes left at `flows_s`
    rates = {}
    flows_s = now_s = 0.0
    resource_of = graph.resource
    work = graph.work
    priority = graph.priority
    route = graph.route
    followers = graph.followers
    touched = set(range(n_resources))
    for task in range(n_tasks):
        if not n_waits[task]:
            heappush(ready[resource_of[task]], (priority[task], task))
    while True:
        flows_changed = False
        for resource in sorted(touched):
            if not ready[resource]:
                continue
            current = doing[resource]
            if current >= 0:
                uninterruptible = route[current] == COMPUTE or work[current] <= graph.chunk_bytes
                if (
                    uninterruptible
                    or current not in rest
                    or ready[resource][0] > (priority[current], current)
                ):
                    continue
                _advance(rest, rates, now_s - flows_s)
                flows_s = now_s
                remaining[current] = rest.pop(current)
                heappush(ready[resource], (priority[current], current))
                flows_changed = True
            task = heappop(ready[resource])[1]
            doing[resource] = task
            if times.start_s[task] < 0:
                times.start_s[task] = now_s
            if route[task] == COMPUTE and resource not in graph.resource_host:
                heappush(ends, (now_s + work[task], task, 0))
            elif work[task] <= 0 or (_host(graph, task) < 0 and not graph.routes[route[task]]):
                heappush(ends, (now_s, task, 0))
            else:
                _advance(rest, rates, now_s - flows_s)
                flows_s = now_s
                rest[task] = remaining[task]
                flows_changed = True
        touched.clear()
        if flows_changed:
            rates = _rates(graph, rest)
        flow_end_s = min(
            (flows_s + amount / rates[task] for task, amount in rest.items()), default=float("inf")
        )
        if not ends and not rest:
            break
        now_s = min(flow_end_s, ends[0][0]) if ends else flow_end_s
        if flow_end_s <= now_s:
            ended = [
                task
                for task, amount in rest.items()
                if flows_s + amount / rates[task] <= now_s + 1e-12 * now_s
            ]
            _advance(rest, rates, now_s - flows_s)
            flows_s = now_s
            for task in ended:
                del rest[task]
                if task < n_tasks or route[task - n_tasks] != COMPUTE:
                    heappush(ends, (now_s, task % n_tasks, int(task >= n_tasks)))
            rates = _rates(graph, rest)
        while ends and ends[0][0] <= now_s:
            _, task, freed = heappop(ends)
            if not freed:
                times.free_s[task] = now_s
                doing[resource_of[task]] = -1
                touched.add(resource_of[task])
                if route[task] != COMPUTE and graph.latency_s[route[task]] > 0:
                    if graph.route_host[route[task]] < 0:
                        heappush(ends, (now_s + graph.latency_s[route[task]], task, 1))
                    else:
                        _advance(rest, rates, now_s - flows_s)
                        flows_s = now_s
                        rest[n_tasks + task] = graph.latency_s[route[task]]
                        rates = _rates(graph, rest)
                    continue
                if route[task] == COMPUTE and resource_of[task] in graph.handling_s:
                    _advance(rest, rates, now_s - flows_s)
                    flows_s = now_s
                    rest[n_tasks + task] = graph.handling_s[resource_of[task]]
                    rates = _rates(graph, rest)
            times.stop_s[task] = now_s
            for follower in followers[task]:
                n_waits[follower] -= 1
                if not n_waits[follower]:
                    heappush(ready[resource_of[follower]], (priority[follower], follower))
                    touched.add(resource_of[follower])
    return times


def _host(graph, task):
    """On whose processor a task runs, or what comes after it (n_tasks + t); -1 for none."""
    task %= len(graph.resource)
    route = graph.route[task]
    return (
        graph.resource_host.get(graph.resource[task], -1)
        if route == COMPUTE
        else graph.route_host[route]
    )


def _amount(graph, task):
    """Seconds of a processor, or bytes."""
    route = graph.route[task]
    if route == COMPUTE or graph.route_host[route] < 0:
        return graph.work[task]
    return graph.work[task] * max(
        (times / graph.capacity[m] for m, times in graph.routes[route]), default=0.0
    )


def _rates(graph, rest):
    """Of every flow: its part of its host's processor, or of the media that it crosses."""
    hosts = {task: _host(graph, task) for task in rest}
    busy = list(hosts.values())
    over_media = {task: graph.routes[graph.route[task]] for task, host in hosts.items() if host < 0}
    on_hosts = {
        task: processor_rate(graph.cores[h], busy.count(h)) for task, h in hosts.items() if h >= 0
    }
    return max_min_rates(over_media, graph.capacity) | on_hosts


def _advance(rest, rates, elapsed_s):
    """Let every flow run on at its rate."""
    if elapsed_s > 0:
        for task in rest:
            rest[task] -= rates[task] * elapsed_s
