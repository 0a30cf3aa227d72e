"""Which stages of a plan make one row of a schedule: those that share devices, as a device does one
thing at a time.
"""

from potluck.records import Plan


def rows_of(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The stages of each row, by the first of them.

    >>> from potluck.records import Stage
    >>> made = (Stage(start=i, stop=i + 1, devices=("abba"[i],), shares=(1,)) for i in range(4))
    >>> rows_of(Plan(planner="x", model="m", stages=tuple(made), micro_batch=1))
    ((0, 3), (1, 2))
    """
    rows = list[list[int]]()
    for p, stage in enumerate(plan.stages):
        sharing = [
            row for row in rows if any({*plan.stages[q].devices} & {*stage.devices} for q in row)
        ]
        rows = [row for row in rows if row not in sharing]
        rows.append(sorted([q for row in sharing for q in row] + [p]))
    return tuple(map(tuple, sorted(rows)))
