"""Metis: orders of device types, groups of equal size classes, layers in proportion to what a group
can do.

Um et al., "Metis", ATC 2024: device groups from sequences of node types, sizes powers of two; layer
load by compute performance, corrected for memory. Data split within a group by performance.

Where we differ: no tensor parallelism (it does not cross machines here); all candidates are given,
with the same closed form as the others'. Layers are balanced exactly instead of step by step.
"""

from collections.abc import Iterator
from itertools import islice, pairwise, permutations

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, shared_s
from potluck.planning.building_blocks.device_classes import alike
from potluck.records import Plan, Problem
from potluck.simulate import cost

MAX_ORDERS = 24  # of device types
MAX_GROUPINGS = 64


def plan_metis(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """The plan of every order of types, grouping and micro-batch size that fits."""
    table = table or cost.CostTable(problem)
    names = [device.name for device in problem.devices]
    types = [[names[i] for i in members] for members in alike(problem)]
    places, known = candidates.cuts(problem, 16), dict[tuple[str, int], list[float]]()
    for order in islice(permutations(types), MAX_ORDERS):
        devices = [name for members in order for name in members]
        for sizes in islice(groupings(len(devices)), MAX_GROUPINGS):
            ends = [sum(sizes[:p]) for p in range(len(sizes) + 1)]
            groups = [tuple(devices[a:b]) for a, b in pairwise(ends)]
            for micro_batch in candidates.micro_batches(problem):
                bounds = balanced(places, len(groups), shared_s(table, groups, micro_batch, known))
                plan = (
                    build(table, "metis", bounds, groups, micro_batch)
                    if bounds is not None
                    else None
                )
                if plan is not None:
                    yield plan


def groupings(n_devices: int) -> Iterator[tuple[int, ...]]:
    """Ways to write `n_devices` as powers of two in order, few groups first: (1, 2), (2, 1), (1, 1,
    1) for 3.
    """
    found: list[tuple[int, ...]] = []

    def extend(sizes: tuple[int, ...], left: int) -> None:
        if not left:
            found.append(sizes)
        for size in (1 << k for k in range(left.bit_length()) if 1 << k <= left):
            if len(found) < 4096:
                extend((*sizes, size), left - size)

    extend((), n_devices)
    yield from sorted(found, key=len)
