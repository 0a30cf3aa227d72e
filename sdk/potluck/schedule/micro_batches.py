"""The micro-batches of a step on any number of rows, and who takes how many rows of each. Pure.

A batch is cut into micro-batches of the plan's size and a smaller one for what is left over. Batch
norm learns from all rows that it sees at once, and of a single one it may have nothing to learn
from at all. So where there is batch norm, no row that had company stays alone: the last two
micro-batches are made about equal, and a device that would get one row leaves it to another.

Stages may have micro-batches of their own sizes. The largest are cut first, and each of them into
the next smaller ones; where it has too few rows for all, the last of these are empty. So a smaller
micro-batch is always part of one larger one. Rows of the micro-batches of one size are the same
whatever the stages, so that results are, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

from potluck.errors import PlanError
from potluck.records import Plan, Segment, Stage

COMPANY = 2  # rows that batch norm has at once, where the batch has them


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows [start, stop) of the batch; device i of the stage takes `shares[i]` of them, perhaps
    none.
    """

    start: int
    stop: int
    shares: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


Division = tuple[tuple[MicroBatch, ...], ...]  # per stage, its micro-batches in order


def divide(plan: Plan, segments: Sequence[Segment], rows: int) -> Division:
    """`rows` in micro-batches of the stages' sizes, of each size one smaller; in one, where rows
    are compared.

    Shares in proportion to the plan's.

    Parameters
    ----------
    plan
        Its micro-batch sizes and shares are kept to.
    segments
        One per stage; tells where batch norm needs company.
    rows
        Rows of the batch, 1 or more.

    Returns
    -------
    Division
        Per stage, micro-batches in order; their rows add up to `rows`.
    """
    together = COMPANY if any(segment.norm_values for segment in segments) else 1
    if any(segment.whole_batch for segment in segments):
        together = min(together, rows)
        parts: dict[int, tuple[int, ...]] = dict.fromkeys(plan.sizes, (rows,))
    else:
        parts = _parts(plan.sizes, rows, together)
    return tuple(_of_stage(stage, parts[stage.rows], together) for stage in plan.stages)


def _parts(plan_sizes: Sequence[int], rows: int, together: int) -> dict[int, tuple[int, ...]]:
    """By size, the largest first: the rows of each micro-batch."""
    found = {plan_sizes[0]: sizes(rows, plan_sizes[0], together)}
    for larger, size in pairwise(plan_sizes):
        wholes = (_filled(sizes(n, size, together), larger // size) for n in found[larger])
        found[size] = tuple(chain.from_iterable(wholes))
    return found


def _filled(parts: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Rows as `n` parts: empty ones at the end, or more rows in the last."""
    if len(parts) > n:
        return (*parts[: n - 1], sum(parts[n - 1 :]))
    return (*parts, *(0,) * (n - len(parts)))


def _of_stage(stage: Stage, parts: Sequence[int], together: int) -> tuple[MicroBatch, ...]:
    least = min(together, *stage.shares)
    stops = tuple(accumulate(parts))
    return tuple(
        MicroBatch(stop - n, stop, shared(stage.shares, n, least))
        for n, stop in zip(parts, stops, strict=True)
    )


def as_divided(plan: Plan, division: Division) -> Plan:
    """The plan with as many micro-batches as this division of a batch has.

    Parameters
    ----------
    plan
        Its stages' micro-batches are those of the division.
    division
        Of any number of rows.
    """
    n_rows = len(division[0]) * plan.stages[0].rows
    return replace(plan, n_micro_batches=n_rows // plan.micro_batch)


def sizes(rows: int, micro_batch: int, together: int = 1) -> tuple[int, ...]:
    """Rows of each micro-batch. Fewer than `together` in the last one: it takes rows of the one
    before, or joins it.

    >>> sizes(37, 32), sizes(5, 4)
    ((32, 5), (4, 1))
    >>> sizes(33, 32, 2), sizes(9, 4, 2), sizes(5, 2, 2), sizes(1, 4, 2)
    ((17, 16), (4, 3, 2), (2, 3), (1,))

    Parameters
    ----------
    rows
        Rows of the batch.
    micro_batch
        Rows of a whole micro-batch.
    together
        The fewest rows that may be alone.
    """
    n, left = divmod(rows, micro_batch)
    found = [micro_batch] * n + [left] * (left > 0)
    if n and 0 < left < together:
        both = micro_batch + left
        found[-2:] = [both - both // 2, both // 2] if both // 2 >= together else [both]
    return tuple(found)


def shared(shares: Sequence[int], rows: int, together: int = 1) -> tuple[int, ...]:
    """`rows` split like `shares`, largest remainders first.

    Who would get fewer than `together` leaves them to another.

    The largest share is never left without rows.

    >>> shared((16, 16), 5), shared((2, 2), 1), shared((3, 1), 4)
    ((3, 2), (1, 0), (3, 1))
    >>> shared((16, 16), 3, 2), shared((3, 3, 2), 3, 2)
    ((3, 0), (3, 0, 0))

    Parameters
    ----------
    shares
        Rows of each device in a whole micro-batch.
    rows
        To be split.
    together
        The fewest rows that a device takes, if any.
    """
    total = sum(shares)
    found = [rows * share // total for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (-(rows * shares[i] % total), -shares[i], i))
    for i in order[: rows - sum(found)]:
        found[i] += 1
    lead = shares.index(max(shares))
    while rows > 1 and (
        alone := [i for i, n in enumerate(found) if 0 < n < together and i != lead]
    ):
        others = [i for i, n in enumerate(found) if n and i != alone[-1]]
        taker = max(others, key=lambda i: (found[i] < together, shares[i] - found[i], i == lead))
        found[taker] += found[alone[-1]]
        found[alone[-1]] = 0
    return tuple(found)


def exceeds(plan: Plan, division: Division) -> bool:
    """Whether a step has more micro-batches than the plan's, or a device more rows of one: it may
    need more memory.
    """
    for stage, count, parts in zip(plan.stages, plan.counts, division, strict=True):
        pairs = (pair for part in parts for pair in zip(part.shares, stage.shares, strict=True))
        if len(parts) > count or any(n > share for n, share in pairs):
            return True
    return False


def check_whole(plan: Plan, segments: Sequence[Segment]) -> None:
    """Refuse a plan that divides the rows of a batch which the loss, or an output, compares.

    Raises
    ------
    PlanError
        It has several micro-batches, or several devices share the rows of the last stage.
    """
    if not any(segment.whole_batch for segment in segments):
        return
    what, way = (
        ("the loss", f"Training(batch={plan.batch}, micro_batch={plan.batch})")
        if plan.training
        else ("an output", f"Inference(batch={plan.batch})")
    )
    if max(plan.counts) > 1:
        raise PlanError(
            f"{what} compares rows, and the plan has {max(plan.counts)} micro-batches.",
            next_step=f"Plan with {way}.",
        )
    for stage, segment in zip(plan.stages, segments, strict=True):
        if segment.whole_batch and len(stage.devices) > 1:
            raise PlanError(
                f"{what} compares rows, and {', '.join(stage.devices)} share those of its stage.",
                next_step=f"Give layers [{stage.start}, {stage.stop}) to one device.",
            )


def check_company(plan: Plan, segments: Sequence[Segment]) -> None:
    """Refuse a plan where a device is to train batch norm on single values: of one there is no
    variance.

    Raises
    ------
    PlanError
        A device takes one row of a micro-batch, and a batch norm has one value per channel and row.
    """
    for stage, segment in zip(plan.stages, segments, strict=True):
        device, share = min(zip(stage.devices, stage.shares, strict=True), key=lambda pair: pair[1])
        if segment.norm_values * share == 1:
            raise PlanError(
                f"it takes 1 row of every micro-batch of layers [{stage.start}, {stage.stop}), "
                "whose batch norm needs more than 1 value per channel when training.",
                device=device,
                next_step="Give it 2 rows or more, or none.",
            )
