"""What policies have to know of a plan's stages: times of their actions and transfers, and how many
micro-batches memory has room for. Pure.
"""

from collections.abc import Callable, Sequence

from potluck.records import Device, Plan, Stage
from potluck.schedule.bubbles import StageTimes
from potluck.schedule.stage_rows import rows_of
from potluck.simulate import cost, equations, flows

# seconds of a part of a stage on its rows of a device
_Part = Callable[[cost.CostTable, Stage, str, int], float]


def stage_times(table: cost.CostTable, plan: Plan) -> StageTimes:
    """The times of one micro-batch of a plan for training; the slowest device of a stage decides.

    A medium takes one transfer after the other.

    Parameters
    ----------
    table
        Of the problem that the plan is for.
    plan
        Its stages, and the rows of a micro-batch.
    """
    handed = flows.output_groups(table.problem, plan.stages)
    learns = flows.learning(handed)
    rows = rows_of(plan)
    return StageTimes(
        forward_s=tuple(_slowest_s(table, stage, _forward_s) for stage in plan.stages),
        input_s=_learning_s(table, plan.stages, learns, _input_s),
        weight_s=_learning_s(table, plan.stages, learns, _weight_s),
        handed_s={
            (p, q): (_cut_s(table, plan, p, q, outputs), _cut_s(table, plan, q, p, gradients))
            for p, given in enumerate(handed)
            for q, (outputs, gradients) in _totals(given).items()
        },
        rows=rows,
        most_kept=tuple(_most_kept(table, plan, stages) for stages in rows),
        media={
            pair: _media(table, plan, *pair)
            for p, given in enumerate(handed)
            for q in _totals(given)
            for pair in ((p, q), (q, p))
        },
        parts=tuple(plan.sizes[0] // stage.rows for stage in plan.stages),
    )


def _media(table: cost.CostTable, plan: Plan, p: int, q: int) -> tuple[str, ...]:
    """The media between the devices of two stages, and their resources: a device sends one thing at
    a time.
    """
    network = table.problem.network
    pairs = ((a, b) for a in plan.stages[p].devices for b in plan.stages[q].devices if a != b)
    resources = [f"from {name}" for name in plan.stages[p].devices]
    crossed = (name for pair in pairs for name, _ in network.path(*pair).media)
    return tuple(dict.fromkeys([*resources, *crossed]))


def _totals(given: Sequence[flows.OutputGroup]) -> dict[int, tuple[int, int]]:
    """Bytes per row that go to each stage, and that come back."""
    found = dict[int, tuple[int, int]]()
    for to, outputs, gradients in given:
        for q in to:
            outward, back = found.get(q, (0, 0))
            found[q] = outward + outputs, back + gradients
    return found


def _cut_s(table: cost.CostTable, plan: Plan, p: int, q: int, row_bytes: int) -> float:
    left, right = plan.stages[p], plan.stages[q]
    network = table.problem.network
    return equations.cut_s(
        network, row_bytes, left.devices, left.shares, right.devices, right.shares
    )


def _slowest_s(table: cost.CostTable, stage: Stage, part: _Part) -> float:
    pairs = zip(stage.devices, stage.shares, strict=True)
    return max(
        table.devices[name].overhead_s + part(table, stage, name, rows) for name, rows in pairs
    )


def _learning_s(
    table: cost.CostTable, stages: Sequence[Stage], learns: Sequence[bool], part: _Part
) -> tuple[float, ...]:
    """Of stages that no gradient reaches nothing."""
    pairs = zip(stages, learns, strict=True)
    return tuple(_slowest_s(table, stage, part) if is_on else 0.0 for stage, is_on in pairs)


def _forward_s(table: cost.CostTable, stage: Stage, device: str, rows: int) -> float:
    return table.forward_s(device, stage.start, stage.stop, rows)


def _input_s(table: cost.CostTable, stage: Stage, device: str, rows: int) -> float:
    whole_s = table.of(stage.recompute).backward_s(device, stage.start, stage.stop, rows)
    return whole_s - _weight_s(table, stage, device, rows)


def _weight_s(table: cost.CostTable, stage: Stage, device: str, rows: int) -> float:
    return table.weight_s(device, stage.start, stage.stop, rows)


def _most_kept(table: cost.CostTable, plan: Plan, row: Sequence[int]) -> int:
    """Micro-batches of one stage that each device of the row has room for, all stages together."""
    stages = [plan.stages[p] for p in row]
    names = {name for stage in stages for name in stage.devices}
    total = sum(plan.counts[p] for p in row)
    fits = min(_fitting(table, plan, table.devices[name]) for name in names)
    return max(len(row), min(total, fits))


def _fitting(table: cost.CostTable, plan: Plan, device: Device) -> int:
    """How many micro-batches of the stage that keeps most of one a device has room for."""
    having = [stage for stage in plan.stages if device.name in stage.devices]
    own = [(stage, stage.shares[stage.devices.index(device.name)]) for stage in having]
    resting = equations.resting_bytes(table, {(stage.start, stage.stop) for stage, _ in own})
    working = max(
        equations.working_bytes(table.of(stage.recompute), stage.start, stage.stop, rows)
        + table.second_gradient_bytes(stage.start, stage.stop, first=False)
        for stage, rows in own
    )
    unit = max(_unit_bytes(table.of(stage.recompute), stage, rows) for stage, rows in own)
    room = table.budgets[device.name] - resting - working
    return room // unit if unit else max(plan.counts) * len(own)


def _unit_bytes(table: cost.CostTable, stage: Stage, rows: int) -> int:
    """What one micro-batch under way takes: kept or waiting, and what it came in and went out
    with.
    """
    kept = table.kept_bytes(stage.start, stage.stop)
    waiting = table.waiting_bytes(stage.start, stage.stop)
    copied = table.copied_bytes(stage.start, stage.stop)
    return rows * (max(kept, waiting) + sum(table.crossing_bytes(stage.start, stage.stop))) + copied
