"""The micro-batch sizes that a search looks at: a few of all, and where the cost of a row or the
memory for it says more, those that promise most.

A row may cost more in a large micro-batch than in a small one: beyond a cache or before a page
file, or just beyond a tile. Then, and where memory is short, the best size may be any divisor of
the batch, and a coarse search tells which. On curves that only fall there is nothing to look at.
"""

from collections.abc import Sequence
from math import inf

from potluck.planning.building_blocks import candidates
from potluck.planning.search.subset_dp import SubsetSearch
from potluck.planning.search.work_budget import is_many
from potluck.records import Problem
from potluck.simulate import cost

RISE_FRAC = 0.02  # of the time of a row, by which it may rise: noise is more often than not less
N_CUTS = 6  # of the coarse search
KEEP, BEAM = 2, 20  # its labels per state, and its states in a home of many devices
N_ADDED = 4  # sizes
NEAR = 1.05  # times the least estimate, that of a size which is worth a closer look


def usual(problem: Problem, *, closely: bool = False) -> list[int]:
    """Few sizes, small ones first; last those of many micro-batches, which take longest to look at.

    Parameters
    ----------
    problem
        What is planned.
    closely
        No size of few micro-batches is left out.
    """
    largest_of_many = problem.workload.batch // candidates.MAX_MICRO_BATCHES
    find = candidates.all_micro_batches if closely else candidates.micro_batches
    return sorted(find(problem), key=lambda size: (size < largest_of_many, size))


def promising(table: cost.CostTable, tried: Sequence[int]) -> list[int]:
    """Sizes beside those that are tried, of which a coarse search expects as little time as of the
    best: none where a row never costs more in a larger micro-batch, and memory is not short.

    Parameters
    ----------
    table
        Of the problem.
    tried
        Sizes that are looked at anyway.
    """
    problem = table.problem
    if getattr(problem.workload, "micro_batch", None) is not None or not _may_gain(table):
        return []
    fewest = candidates.fewest_rows(problem)
    all_sizes = candidates.divisions(problem.workload.batch, candidates.MOST_STATED)
    expected_s, least_s = dict[int, float](), inf
    for size in (*tried, *(size for size in all_sizes if size >= fewest and size not in tried)):
        expected_s[size] = _expected_s(table, size, least_s * NEAR)
        least_s = min(least_s, expected_s[size])
    near = (size for size in expected_s if expected_s[size] < least_s * NEAR and size not in tried)
    return sorted(near, key=lambda size: expected_s[size])[:N_ADDED]


def _expected_s(table: cost.CostTable, size: int, limit_s: float) -> float:
    """Of the best plan in micro-batches of that size, about; endless from the limit on."""
    many = is_many(table.problem)
    cuts = candidates.cuts(table.problem, N_CUTS)
    search = SubsetSearch(
        table, size, cuts, keep=KEEP, pipelines_only=many, beam=BEAM if many else None
    )
    return min((label.score for label in search.run(limit_s)), default=inf)


def _may_gain(table: cost.CostTable) -> bool:
    """Whether on some device rows cost more in a larger micro-batch, or one lacks memory for all of
    the model.
    """
    problem = table.problem
    if any(_rise_frac(table, name) > RISE_FRAC for name in problem.costs):
        return True
    return candidates.is_short(problem, min(candidates.micro_batches(problem)))


def _rise_frac(table: cost.CostTable, name: str) -> float:
    """The most by which a row of some layers costs more at a measured size than at a smaller one,
    added up. It is a part of the least that a row of the whole model costs.
    """
    batch, layers = table.problem.workload.batch, table.problem.costs[name]
    sizes = sorted({1, batch, *(rows for layer in layers for rows in layer.rows if rows < batch)})
    rises_s, row_s = 0.0, 0.0
    for i in range(len(layers)):
        least_s, rise_s = inf, 0.0
        for rows in sizes:
            each_s = table.compute_s(name, i, i + 1, rows) / rows
            least_s = min(least_s, each_s)
            rise_s = max(rise_s, each_s - least_s)
        rises_s, row_s = rises_s + rise_s, row_s + least_s
    return rises_s / max(row_s, 1e-30)
