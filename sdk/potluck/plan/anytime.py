"""Our own planner: a first plan at once, better ones as long as time is left.

First each device alone; then pipelines over few cuts for every micro-batch size; then, with what is known to beat, all
groups of devices over ever finer cuts; last, what other planners find. The search estimates, the simulator decides, and
the best plans are improved step by step. The clock comes in as an argument; without one the effort is fixed, and the
outcome always the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from potluck.plan import choices, cost
from potluck.plan.alpa import plan_alpa
from potluck.plan.gpipe import plan_gpipe
from potluck.plan.hetpipe import plan_hetpipe
from potluck.plan.improve import floor_s, neighbours
from potluck.plan.pipedream import plan_pipedream
from potluck.plan.single import plan_single
from potluck.plan.subset import Label, SubsetSearch, is_thrifty, objective
from potluck.records import Plan, Problem, Stage
from potluck.simulate import direct

# How many cuts, whether only pipelines of single devices; then how many plans are improved, with how many simulations.
PASSES = ((6, True, 1, 0), (10, False, 2, 50), (16, False, 3, 80), (32, False, 3, 120))
N_FINE = 32  # cuts tried along one order of devices
MAX_WORK = 3e5  # a pass beyond takes seconds; only who gives a time limit gets it
LATE_J = 1e12  # the latency asked for is a limit: a plan on time comes before any that is late
N_RIVAL = 6  # of every other planner's plans, those it thinks best
N_JUDGED = 8  # of a micro-batch size and pass, those of the best estimates
MAX_EXACT = 8  # devices up to which every state is kept
BEAM = 60  # states kept beyond

CHEAP = (plan_gpipe, plan_pipedream, plan_hetpipe, plan_alpa)  # some 0.1 s each at most


@dataclass(slots=True)
class Board:
    """Every plan that was simulated and its score; the best first when asked."""

    problem: Problem
    table: cost.CostTable
    simulator: direct.Direct
    scores: dict[tuple[tuple[Stage, ...], int], tuple[float, Plan]] = field(default_factory=dict)
    best: float = inf
    max_work: float = MAX_WORK

    def score(self, plan: Plan) -> float:
        """Simulate `plan` unless it is known or cannot be the best; its score, infinite if it was not simulated."""
        key = plan.stages, plan.micro_batch
        if key in self.scores:
            return self.scores[key][0]
        thrifty = is_thrifty(self.problem)
        if not thrifty and floor_s(self.table, plan) >= self.best * 1.5:
            return inf
        outcome = self.simulator.run(plan)
        score = outcome.latency_s
        if thrifty:
            score = objective(self.problem.qoe, outcome.latency_s, sum(outcome.device_energy_j().values()))
            lateness = outcome.latency_s / (self.problem.qoe.latency_s or inf)
            score += LATE_J * lateness if lateness > 1 else 0.0
        self.scores[key] = score, replace(plan, latency_s=outcome.latency_s)
        self.best = min(self.best, score)
        return score

    def ranking(self) -> list[Plan]:
        """All simulated plans, the best first."""
        return [plan for _, plan in sorted(self.scores.values(), key=lambda item: item[0])]


def plan_anytime(
    problem: Problem, table: cost.CostTable | None = None, *, simulator: direct.Direct | None = None
) -> Iterator[Plan]:
    """Plans as they are found, each better than the one before, with the latency that the simulator gives them."""
    table = table or cost.CostTable(problem)
    board = Board(problem, table, simulator or direct.Direct(problem, table))
    best = inf
    for _ in _steps(board, ()):
        if board.best < best:
            best = board.best
            yield board.ranking()[0]


def search(board: Board, first: Sequence[Plan] = (), is_late: Callable[[], bool] = lambda: False) -> None:
    """Fill the board until nothing better is found, or time is up and there is a plan. `first`: plans to be beaten."""
    for _ in _steps(board, first):
        if board.scores and is_late():
            return


def _steps(board: Board, first: Sequence[Plan]) -> Iterator[None]:
    """One bit of work after the other."""
    for plan in (*plan_single(board.problem, board.table), *first):
        board.score(plan)
        yield
    yield from _passes(board)
    if len(board.problem.devices) > MAX_EXACT:
        return
    for planner in CHEAP:  # others look elsewhere: whatever they find must be beaten, or taken
        plans = sorted(planner(board.problem, board.table), key=lambda plan: plan.latency_s or inf)
        yield
        for plan in plans[:N_RIVAL]:
            board.score(plan)
            yield
    yield from _improve(board, 1, PASSES[1][3])


def _passes(board: Board) -> Iterator[None]:
    """Our own search over ever finer cuts."""
    sizes = list(choices.micro_batches(board.problem))
    for n_cuts, pipelines_only, n_improved, tries in PASSES:
        cuts = choices.cuts(board.problem, n_cuts)
        if n_cuts > PASSES[1][0] and _work(board, len(cuts)) > board.max_work:
            return
        found: list[tuple[float, Label, SubsetSearch]] = []
        reached: dict[int, float] = {}
        for micro_batch in sizes:
            search = _search(board, micro_batch, cuts, pipelines_only)
            labels = search.run(board.best)
            reached[micro_batch] = labels[0].score if labels else inf
            yield
            for label in labels[:N_JUDGED]:
                if label.score < board.best:
                    board.score(search.plan(label))
                    yield
            found += [(label.score, label, search) for label in labels[N_JUDGED:]]
        for score, label, search in sorted(found, key=lambda item: item[0])[:N_JUDGED]:
            if score < board.best:
                board.score(search.plan(label))
                yield
        sizes.sort(key=lambda size: reached[size])  # the most promising first in the next pass
        yield from _recut(board, sizes, n_improved)
        yield from _improve(board, n_improved, tries)
        if len(cuts) > len(board.problem.layers) and not pipelines_only:
            return


def _work(board: Board, n_cuts: int) -> float:
    """How many ways there are to put a stage before others, about: what a pass costs."""
    search = _search(board, min(choices.micro_batches(board.problem)), choices.cuts(board.problem, 1), False)
    return float(search.radix[-1] * len(search.codes) * n_cuts**2)


def _recut(board: Board, sizes: Sequence[int], n: int) -> Iterator[None]:
    """The best orders of devices again, over all cuts: a search along one order is cheap."""
    cuts = choices.cuts(board.problem, N_FINE)
    for plan in _distinct(board, n):
        if sum(len(stage.devices) for stage in plan.stages) > len(plan.devices):
            continue  # a device in several stages, which this search does not know
        near = [size for size in sizes if plan.micro_batch / 2 <= size <= plan.micro_batch * 2]
        for micro_batch in near:
            search = SubsetSearch(board.table, micro_batch, cuts, along=plan)
            labels = search.run(board.best)
            yield
            for label in labels[:N_JUDGED]:
                if label.score < board.best:
                    board.score(search.plan(label))
                    yield


def _search(board: Board, micro_batch: int, cuts: Sequence[int], pipelines_only: bool) -> SubsetSearch:
    beam = None if len(board.problem.devices) <= MAX_EXACT else BEAM
    return SubsetSearch(board.table, micro_batch, cuts, beam=beam, pipelines_only=pipelines_only)


def _distinct(board: Board, n: int) -> list[Plan]:
    """The best plans: of the `n` best orders of devices the best two, apart in their cuts."""
    starts: dict[tuple[tuple[str, ...], ...], dict[tuple[int, ...], Plan]] = {}
    for plan in board.ranking():
        order = tuple(stage.devices for stage in plan.stages)
        if order not in starts and len(starts) == n:
            continue
        same = starts.setdefault(order, {})
        if len(same) < 2:
            same.setdefault((plan.micro_batch, *(stage.stop for stage in plan.stages)), plan)
    return [plan for same in starts.values() for plan in same.values()]


def _improve(board: Board, n: int, max_tries: int) -> Iterator[None]:
    """Local search from the best plans."""
    for plan in _distinct(board, n):
        tries = 0
        better: Plan | None = plan
        while better is not None:
            here, better = better, None
            reached = board.score(here)
            for other in neighbours(board.table, here):
                if tries >= max_tries:
                    break
                if floor_s(board.table, other) >= reached:
                    continue
                tries += 1
                if board.score(other) < reached * (1 - 1e-4):
                    better = other
                    break
                yield
