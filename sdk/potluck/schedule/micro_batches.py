"""The micro-batches of a step on any number of rows, and who takes how many rows of each. Pure.

A batch is cut into micro-batches of the plan's size and a smaller one for what is left over. Batch
norm learns from all rows that it sees at once, and of a single one it may have nothing to learn
from at all. So where there is batch norm, no row that had company stays alone: the last two
micro-batches are made about equal, and a device that would get one row leaves it to another. Rows
of micro-batches are the same whatever the stages, so that results are, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.errors import PlanError
from potluck.records import Plan, Segment

COMPANY = 2  # rows that batch norm has at once, where the batch has them


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows [start, stop) of the batch; device i of stage p takes `shares[p][i]` of them, perhaps
    none.
    """

    start: int
    stop: int
    shares: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


Division = tuple[MicroBatch, ...]


def divide(plan: Plan, segments: Sequence[Segment], rows: int) -> Division:
    """`rows` in micro-batches of the plan's size, one of them smaller; in one, where the loss
    compares rows.

    Shares in proportion to the plan's.

    Parameters
    ----------
    plan
        Its micro-batch size and shares are kept to.
    segments
        One per stage; tells where batch norm needs company.
    rows
        Rows of the batch, 1 or more.

    Returns
    -------
    Division
        Micro-batches in order; their rows add up to `rows`.
    """
    together = COMPANY if any(segment.norm_values for segment in segments) else 1
    if any(segment.whole_batch for segment in segments):
        together = min(together, rows)
        each = tuple(
            shared(stage.shares, rows, min(together, *stage.shares)) for stage in plan.stages
        )
        return (MicroBatch(0, rows, each),)
    found, start = [], 0
    for size in sizes(rows, plan.micro_batch, together):
        shares = tuple(
            shared(stage.shares, size, min(together, *stage.shares)) for stage in plan.stages
        )
        found.append(MicroBatch(start, start + size, shares))
        start += size
    return tuple(found)


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
    pairs = (
        (part.shares[p], stage.shares) for part in division for p, stage in enumerate(plan.stages)
    )
    more = any(n > share for taken, shares in pairs for n, share in zip(taken, shares, strict=True))
    return more or len(division) > plan.n_micro_batches


def check_whole(plan: Plan, segments: Sequence[Segment]) -> None:
    """Refuse a plan that divides the rows of a batch which the loss compares.

    Raises
    ------
    PlanError
        It has several micro-batches, or several devices share the rows of the stage with the loss.
    """
    if not any(segment.whole_batch for segment in segments):
        return
    if plan.n_micro_batches > 1:
        raise PlanError(
            f"the loss compares rows, and the plan has {plan.n_micro_batches} micro-batches.",
            next_step=f"Plan with Training(batch={plan.batch}, micro_batch={plan.batch}).",
        )
    if len(plan.stages[-1].devices) > 1:
        raise PlanError(
            f"the loss compares rows, and {', '.join(plan.stages[-1].devices)} share those of its "
            "stage.",
            next_step="Give the last stage to one device.",
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
