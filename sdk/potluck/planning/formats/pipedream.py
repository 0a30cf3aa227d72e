"""PipeDream's `graph.txt`: a profile as a graph of operators, and, with a stage at each, a plan.

Read and written.

One line a node, `node3 -- Conv2d(...) -- forward_compute_time=MS, backward_compute_time=MS,
activation_size=BYTES, parameter_size=BYTES[ -- stage_id=N]`, times and activations of a whole
minibatch; then one line an edge, indented, `node3 -- node4`. The format of
github.com/msr-fiddle/pipedream (Narayanan et al., SOSP 2019), which HPGO's DAPPLE planner reads as
well. It knows one kind of device: times written are the mean over the home's.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise, permutations
from math import isfinite

from potluck.errors import FileError, PlanError, UserError
from potluck.graph.modelgraph import ModelGraph, ModelInput, OperatorNode
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import build
from potluck.records import LayerCost, Plan, Problem
from potluck.simulate import cost

MS = 1e-3
MAX_ORDERS = 5040  # of devices, tried for a plan that does not say which device is which
_FACTS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
# (start, end) seconds replicas
_PRINTED = re.compile(r"^\((\d{1,9}), (\d{1,9})\) [\d.eE+-]+ (\d{1,9})\s*$", re.MULTILINE)
_STAGED = re.compile(r" -- stage_id=\d+\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeDreamOperator:
    """One node; seconds and `activation_bytes` are those of a whole minibatch."""

    name: str
    description: str
    forward_s: float = 0.0
    backward_s: float = 0.0
    activation_bytes: float = 0.0
    parameter_bytes: float = 0.0
    stage: int | None = None

    @property
    def is_input(self) -> bool:
        """Whether it stands for what is fed rather than for an operator."""
        return self.description.startswith("Input")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeDreamGraph:
    """Operators in an order in which they can run, and who feeds whom."""

    operators: tuple[PipeDreamOperator, ...]
    edges: tuple[tuple[str, str], ...]


def read(text: str, file: str = "a graph.txt") -> PipeDreamGraph:
    """The graph of a text.

    Raises
    ------
    FileError
        Names the line that is wrong, or the cycle.
    """
    found: dict[str, PipeDreamOperator] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.strip().split(" -- ")
        if not line.strip():
            continue
        if len(parts) == 2:
            edges.append((parts[0], parts[1]))
            continue
        operator = _operator(parts, f"{file}: line {number}")
        if operator.name in found:
            raise FileError(
                f"{file}: line {number}: there are two nodes called {operator.name}.", file=file
            )
        found[operator.name] = operator
    for edge in edges:
        for end in edge:
            if end not in found:
                raise FileError(
                    f"{file}: an edge joins {end}, and there is no such node.", file=file
                )
    return PipeDreamGraph(
        operators=tuple(found[name] for name in _in_order(found, edges, file)), edges=tuple(edges)
    )


def write(graph: PipeDreamGraph) -> str:
    """The text of a graph; `read` gives the same graph back, to the microsecond."""
    lines = [_line(operator) for operator in graph.operators]
    return (
        "\n".join([*lines, *(f"\t{source} -- {target}" for source, target in graph.edges)]) + "\n"
    )


def _line(operator: PipeDreamOperator) -> str:
    values = (
        operator.forward_s / MS,
        operator.backward_s / MS,
        operator.activation_bytes,
        operator.parameter_bytes,
    )
    facts = ", ".join(f"{name}={value:.3f}" for name, value in zip(_FACTS, values, strict=True))
    stage = "" if operator.stage is None else f" -- stage_id={operator.stage}"
    return f"{operator.name} -- {operator.description} -- {facts}{stage}"


def _operator(parts: Sequence[str], where: str) -> PipeDreamOperator:
    if len(parts) not in (3, 4):
        raise FileError(
            f"{where}: expected `name -- description -- facts`, got {' -- '.join(parts)[:80]!r}."
        )
    facts = dict(item.split("=", 1) for item in parts[2].split(", ") if "=" in item)
    if set(facts) != set(_FACTS):
        raise FileError(f"{where}: expected the facts {', '.join(_FACTS)}, got {parts[2][:120]!r}.")
    forward, backward, activation, parameters = (
        _number(facts[name], f"{where}: {name}") for name in _FACTS
    )
    stage = re.fullmatch(r"stage_id=(\d{1,9})", parts[3]) if len(parts) == 4 else None
    if len(parts) == 4 and stage is None:
        raise FileError(f"{where}: expected stage_id=NUMBER, got {parts[3][:40]!r}.")
    return PipeDreamOperator(
        name=parts[0],
        description=parts[1],
        forward_s=forward * MS,
        backward_s=backward * MS,
        activation_bytes=activation,
        parameter_bytes=parameters,
        stage=int(stage[1]) if stage else None,
    )


def _number(text: str, where: str) -> float:
    """A number, or the sum of `[1.0; 2.0]`: an operator of several outputs."""
    try:
        value = sum(float(part) for part in text.strip("[]").split(";"))
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value < 0:
        raise FileError(f"{where}: expected a number, zero or more, got {text[:40]!r}.")
    return value


def _in_order(
    found: Mapping[str, PipeDreamOperator], edges: Sequence[tuple[str, str]], file: str
) -> list[str]:
    """Names so that each comes after what feeds it.

    Of those that could come, the one of the lowest number.
    """
    sorter = TopologicalSorter({name: [a for a, b in edges if b == name] for name in found})
    try:
        sorter.prepare()
    except CycleError as error:
        raise FileError(
            f"{file}: there is a cycle: {' -> '.join(error.args[1])}.", file=file
        ) from error
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=_by_number)
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def _by_number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d{1,18}", name)
    return (int(digits[0]) if digits else 0), name


# --- our problems for PipeDream, its profiles for us ----------------------------------------------


def of_problem(problem: Problem, rows: int, device: str = "") -> PipeDreamGraph:
    """The problem as PipeDream takes it: minibatches of `rows`, times the mean over the devices, or
    one device's.

    Parameters
    ----------
    problem
        What is planned.
    rows
        Of a minibatch.
    device
        Whose times to take; default: the mean over all.
    """
    table = cost.CostTable(problem)
    names = [problem.device(device).name] if device else [item.name for item in problem.devices]
    fed = PipeDreamOperator(
        name="node1", description="Input0", activation_bytes=problem.input_bytes * rows
    )
    operators = [fed]
    for i, layer in enumerate(problem.layers):
        forward = [table.forward_s(name, i, i + 1, rows) for name in names]
        training = any(costs[i].backward_s for costs in problem.costs.values())
        backward = [table.backward_s(name, i, i + 1, rows) for name in names] if training else [0.0]
        operators.append(
            PipeDreamOperator(
                name=f"node{i + 2}",
                description=layer.name.replace(" -- ", " - ").replace("\n", " "),
                forward_s=sum(forward) / len(forward),
                backward_s=sum(backward) / len(backward),
                activation_bytes=layer.output_bytes * rows,
                parameter_bytes=layer.parameter_bytes,
            )
        )
    edges = tuple((a.name, b.name) for a, b in pairwise(operators))
    return PipeDreamGraph(operators=tuple(operators), edges=edges)


def model_of(graph: PipeDreamGraph, rows: int, name: str = "graph") -> ModelGraph:
    """The operators as a model graph, sizes per row of a minibatch of `rows`.

    Parameters
    ----------
    graph
        As `read` gives it.
    rows
        Of the minibatch that was measured.
    name
        What plans call the model.

    Raises
    ------
    UserError
        A minibatch has less than one row.
    FileError
        The graph has no operator.
    """
    if rows < 1:
        raise UserError(f"a minibatch has at least one row, got rows={rows}.")
    inputs = tuple(
        ModelInput(name=item.name, row_bytes=round(item.activation_bytes / rows))
        for item in graph.operators
        if item.is_input
    )
    nodes = tuple(
        OperatorNode(
            name=item.name,
            kind="elementwise",
            inputs=tuple(a for a, b in graph.edges if b == item.name),
            parameter_bytes=round(item.parameter_bytes),
            output_bytes=round(item.activation_bytes / rows),
            activation_bytes=round(item.activation_bytes / rows),
        )
        for item in graph.operators
        if not item.is_input
    )
    if not nodes:
        raise FileError("a graph.txt needs at least one operator beside its inputs.")
    return ModelGraph(name=name, inputs=inputs, nodes=nodes, outputs=(nodes[-1].name,))


def costs_of(graph: PipeDreamGraph, rows: int) -> tuple[LayerCost, ...]:
    """The measured times of the operators, in the order of `model_of`'s nodes."""
    return tuple(
        LayerCost(rows=(rows,), forward_s=(item.forward_s,), backward_s=(item.backward_s,))
        for item in graph.operators
        if not item.is_input
    )


# --- its plans ------------------------------------------------------------------------------------


def is_plan(text: str) -> bool:
    """Whether this is a graph.txt with stages, or what PipeDream's optimizer prints of its
    partition.
    """
    return bool(_STAGED.search(text) or _PRINTED.search(text))


def plans(text: str, problem: Problem, table: cost.CostTable) -> Iterator[Plan]:
    """The plan on every order of devices and micro-batch: it does not say which device is which, so
    the best may win.

    Rows are shared by Asteroid's Algorithm 1, as for all others.

    Parameters
    ----------
    text
        A graph.txt with stages, or what the optimizer printed.
    problem
        That it was given.
    table
        Of this problem.

    Raises
    ------
    PlanError
        The plan is of another model, or takes more devices than there are.
    """
    bounds, replicas = _printed(text) if _PRINTED.search(text) else _staged(text)
    if bounds[-1] != len(problem.layers):
        raise PlanError(
            f"the plan covers {bounds[-1]} layers; {problem.model} has {len(problem.layers)}.",
            next_step="Export the same problem again: `potluck plan export pipedream HOME MODEL`.",
        )
    names = [device.name for device in problem.devices]
    if sum(replicas) > len(names):
        raise PlanError(f"the plan takes {sum(replicas)} devices; this home has {len(names)}.")
    ends = [sum(replicas[:p]) for p in range(len(replicas) + 1)]
    for order in islice(permutations(names, sum(replicas)), MAX_ORDERS):
        groups = [order[a:b] for a, b in pairwise(ends)]
        # within a stage the order is ours to choose
        if any(group != tuple(sorted(group)) for group in groups):
            continue
        for micro_batch in candidates.micro_batches(problem):
            plan = build(table, "pipedream", bounds, groups, micro_batch)
            if plan is not None:
                yield plan


def _printed(text: str) -> tuple[list[int], list[int]]:
    found = [tuple(map(int, match.groups())) for match in _PRINTED.finditer(text)]
    bounds = [0]
    for start, stop, _ in found:
        if start != bounds[-1] or stop <= start:
            raise PlanError(
                f"the printed partition has ({start}, {stop}) after {bounds[-1]}: not one level "
                "in order."
            )
        bounds.append(stop)
    return bounds, [replicas for *_, replicas in found]


def _staged(text: str) -> tuple[list[int], list[int]]:
    stages = [item.stage for item in read(text, "the plan").operators if not item.is_input]
    if any(stage is None for stage in stages):
        raise PlanError("some nodes of the graph.txt have a stage_id, others have none.")
    starts = [i for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]
    if len(starts) != len(set(stages)):
        raise PlanError(
            "a stage of the graph.txt is not a run of neighbouring layers, and only such can "
            "be judged."
        )
    return [*starts, len(stages)], [1] * len(starts)
