"""Schedule policies: pure functions from the pipeline's shape to the order of actions, and by name
from a plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from potluck.errors import PlanError, UserError
from potluck.records import Plan
from potluck.schedule.bubbles import StageTimes, chain_of
from potluck.schedule.ir import BACKWARD, FORWARD, Action, Schedule, check_form
from potluck.schedule.stage_graph import Before, behind, chain
from potluck.schedule.stage_rows import rows_of
from potluck.schedule.zero_bubble import ZERO_BUBBLE

Policy = Callable[[Plan], Schedule]
Times = Callable[[Plan], StageTimes]


def warm_up_depth(stage: int, n_stages: int, n_micro_batches: int) -> int:
    """K_p = min(2 (P - p) - 1, M): forwards before the first backward that keep 1F1B free of
    bubbles over slow links.

    Asteroid, section 3.2: the smallest depth that loses no concurrency when communication steps
    count as stages too.

    Parameters
    ----------
    stage
        p, from 0.
    n_stages
        P.
    n_micro_batches
        M.
    """
    return min(2 * (n_stages - stage) - 1, n_micro_batches)


def warm_up_depths(room: Sequence[int], n_micro_batches: int) -> list[int]:
    """K_p for every stage, or what `room` has memory for: none keeps more than the one before it,
    nor more than two micro-batches beyond the one behind, as they would only be on the links before
    their turn.

    >>> warm_up_depths([9, 7, 5, 1, 1], 32)
    [7, 5, 3, 1, 1]
    """
    depths = list[int]()
    ceiling = n_micro_batches
    n_stages = len(room)
    for p, max_kept in enumerate(room):
        ceiling = min(warm_up_depth(p, n_stages, n_micro_batches), max_kept, ceiling)
        depths.append(ceiling)
    for p in reversed(range(n_stages - 1)):
        depths[p] = min(depths[p], depths[p + 1] + 2)
    return depths


def warm_ups_of_rows(
    rows: Sequence[int], counts: Sequence[int], before: Before, *, ahead: int = 2
) -> list[int]:
    """K_p of stages whose micro-batches have so many rows each: the rows that the stage behind
    keeps, and `ahead` of the larger micro-batches of the two. With one size: 2 (P - p) - 1.

    With fewer of its own than the next stage takes before its first backward, a stage would wait
    for ever; `ahead` of 1 is enough for that.

    >>> warm_ups_of_rows([8, 8, 8], [4, 4, 4], ((), (0,), (1,)))
    [4, 3, 1]
    >>> warm_ups_of_rows([2, 8], [16, 4], ((), (0,)))
    [12, 1]

    Parameters
    ----------
    rows
        Per stage, of a micro-batch.
    counts
        Per stage, its micro-batches in a step.
    before
        Per stage, the stages that it takes tensors from.
    ahead
        Micro-batches beyond those of the stage behind.
    """
    depths, kept = [1] * len(rows), [*rows]
    for p in reversed(range(len(rows))):
        needed = [kept[q] + ahead * max(rows[p], rows[q]) for q in behind(before)[p]]
        depths[p] = min(-(-max(needed, default=rows[p]) // rows[p]), counts[p])
        kept[p] = depths[p] * rows[p]
    return depths


def one_f_one_b(
    n_stages: int, n_micro_batches: int | Sequence[int], warm_up: Sequence[int] | None = None
) -> Schedule:
    """1F1B: stage p does `warm_up[p]` forwards, then one backward and one forward in turn, then the
    backwards left.

    At most `warm_up[p]` micro-batches are kept at once. Default depths: `warm_ups_of_rows`.

    Parameters
    ----------
    n_stages
        P.
    n_micro_batches
        M; or of each stage, where they differ.
    warm_up
        Per stage, forwards before its first backward; default: `warm_ups_of_rows`.

    Raises
    ------
    UserError
        There is not one depth of 1 or more per stage.
    """
    counts = _counts(n_stages, n_micro_batches)
    depths = (
        warm_up
        if warm_up is not None
        else warm_ups_of_rows([max(counts) // n for n in counts], counts, chain(n_stages))
    )
    if len(depths) != n_stages or any(depth < 1 for depth in depths):
        raise UserError(
            f"1F1B needs a warm-up depth of 1 or more for each of {n_stages} stages, got "
            f"{tuple(depths)}."
        )
    return tuple(
        _alternating(
            [Action(p, FORWARD, m) for m in range(n)],
            [Action(p, BACKWARD, m) for m in range(n)],
            depth,
        )
        for p, (n, depth) in enumerate(zip(counts, depths, strict=True))
    )


def _counts(n_stages: int, n_micro_batches: int | Sequence[int]) -> Sequence[int]:
    return [n_micro_batches] * n_stages if isinstance(n_micro_batches, int) else n_micro_batches


def _alternating(
    forwards: Sequence[Action], backwards: Sequence[Action], depth: int
) -> tuple[Action, ...]:
    """`depth` forwards first, then one backward and one forward in turn, then the backwards
    left.
    """
    pairs = zip_longest(backwards, forwards[depth:])
    return (*forwards[:depth], *(action for pair in pairs for action in pair if action is not None))


def fill_drain(n_stages: int, n_micro_batches: int | Sequence[int]) -> Schedule:
    """GPipe: all forwards, then all backwards; every micro-batch is kept at once."""
    return one_f_one_b(n_stages, n_micro_batches, _counts(n_stages, n_micro_batches))


def interleaved(n_rows: int, n_chunks: int, n_micro_batches: int) -> Schedule:
    """1F1B with `n_chunks` stages per row: row r has the stages r, r + n_rows, r + 2 n_rows, ...

    Every chunk is a shorter stage, so a pipeline fills and drains sooner, for more transfers
    (Narayanan et al. 2021, section 2.2). Micro-batches go through the chunks in equal rounds of
    `n_rows`, or of the next larger number that divides them: the larger, the more is kept and the
    later the first backward.

    Parameters
    ----------
    n_rows
        Sets of devices.
    n_chunks
        Stages of each set.
    n_micro_batches
        M.

    Raises
    ------
    UserError
        One of these is below 1.
    """
    if min(n_rows, n_chunks, n_micro_batches) < 1:
        raise UserError(
            f"interleaving needs rows, chunks and micro-batches, got {n_rows}, {n_chunks} and "
            f"{n_micro_batches}."
        )
    candidates = range(min(n_rows, n_micro_batches), n_micro_batches + 1)
    n_at_once = next(n for n in candidates if n_micro_batches % n == 0)
    rounds = [
        (chunk, first + m)
        for first in range(0, n_micro_batches, n_at_once)
        for chunk in range(n_chunks)
        for m in range(n_at_once)
    ]
    rows = []
    for r in range(n_rows):
        forwards = [Action(chunk * n_rows + r, FORWARD, m) for chunk, m in rounds]
        backwards = [
            Action((n_chunks - 1 - chunk) * n_rows + r, BACKWARD, m) for chunk, m in rounds
        ]
        # One more than before the first backward could be due: the steady phase begins with the
        # backward.
        depth = (n_chunks - 1) * n_at_once + 2 * (n_rows - r - 1) + 1
        rows.append(_alternating(forwards, backwards, min(depth, len(forwards))))
    return tuple(rows)


def forward_only(n_stages: int, n_micro_batches: int | Sequence[int]) -> Schedule:
    """Inference: every micro-batch forward, in order. One micro-batch is a single request; a stream
    is many of these programs in flight, of which the oldest goes first.
    """
    return tuple(
        tuple(Action(p, FORWARD, m) for m in range(n))
        for p, n in enumerate(_counts(n_stages, n_micro_batches))
    )


def _interleaved_of(plan: Plan) -> Schedule:
    """Rows are the sets of devices that the stages repeat in turn."""
    if len(plan.sizes) > 1:
        raise PlanError(
            "interleaved takes micro-batches of one size, and stages of this plan take "
            f"{', '.join(map(str, plan.sizes))} rows at a time.",
            next_step="Use 1f1b, or leave `micro_batch` of the stages out.",
        )
    devices, n_stages = [stage.devices for stage in plan.stages], len(plan.stages)
    for n_rows in range(1, n_stages):
        if n_stages % n_rows == 0 and devices == devices[:n_rows] * (n_stages // n_rows):
            return interleaved(n_rows, n_stages // n_rows, plan.n_micro_batches)
    raise PlanError(
        "interleaving needs stages that go round the same devices several times.",
        next_step="Use 1f1b, or a plan whose stages are on a, b, a, b.",
    )


POLICIES: dict[str, Policy] = {
    "1f1b": lambda plan: one_f_one_b(
        len(plan.stages), plan.counts, [s.warm_up for s in plan.stages]
    ),
    "fill-drain": lambda plan: fill_drain(len(plan.stages), plan.counts),
    "interleaved": _interleaved_of,
    "forward-only": lambda plan: forward_only(len(plan.stages), plan.counts),
}


def policy(choice: str | Policy | None, *, training: bool, times: Times | None = None) -> Policy:
    """The policy of that name (default: 1F1B, or forward only), or a function of your own from plan
    to schedule.

    Parameters
    ----------
    choice
        A name, or a function.
    training
        Whether backwards belong to it.
    times
        What a plan's stages take, which zero-bubble policies go by; default: equal stages, and
        transfers that take no time.

    Raises
    ------
    UserError
        Where no policy has that name, or it is one for training and nothing is trained.
    PlanError
        It never goes backward, and training needs that.
    """
    if callable(choice):
        return partial(_own, choice)
    name = choice or ("1f1b" if training else "forward-only")
    known = (*POLICIES, *ZERO_BUBBLE)
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"no schedule is called {name!r}.", next_step=f"There are {', '.join(known)}."
        )
    if training and name == "forward-only":
        raise PlanError(
            f"{name} never goes backward, and training needs that.",
            next_step="Use 1f1b, or a plan for inference.",
        )
    if name in POLICIES:
        return POLICIES[name]
    if not training:
        raise UserError(
            f"{name} puts backwards in order, and inference has none.",
            next_step="Use forward-only, or a plan for training.",
        )
    by_times = ZERO_BUBBLE[name]
    return lambda plan: by_times((times or equal_times)(plan), plan.batch // plan.sizes[0])


def equal_times(plan: Plan) -> StageTimes:
    """The times of a plan of which nobody knows any: every stage takes as long for each part of as
    many rows, and memory has room for what its warm-ups keep.
    """
    rows = rows_of(plan)
    kept = [sum(plan.stages[p].warm_up for p in stages) for stages in rows]
    times = chain_of(len(plan.stages), max(max(kept), len(plan.stages)), rows=rows)
    parts = tuple(plan.sizes[0] // stage.rows for stage in plan.stages)
    each_s = tuple(1 / n for n in parts)
    return replace(times, forward_s=each_s, input_s=each_s, weight_s=each_s, parts=parts)


def _own(choice: Policy, plan: Plan) -> Schedule:
    """What a policy of the user's own gives, which may be anything."""
    schedule = choice(plan)
    check_form(schedule)
    return schedule
