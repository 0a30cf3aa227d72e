"""An Action: one stage does one thing with one micro-batch.

`2F0` is stage 2, forward, micro-batch 0.
"""

import re
from typing import NamedTuple

from potluck.errors import UserError

FORWARD = "F"
BACKWARD = "B"
INPUT_GRADIENT = "I"
WEIGHT_GRADIENT = "W"
KINDS = {
    FORWARD: "forward",
    BACKWARD: "backward, whole",
    INPUT_GRADIENT: "backward, input part",
    WEIGHT_GRADIENT: "backward, weight part",
}
_TEXT = re.compile(r"(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """What stage `stage` does with micro-batch `micro_batch`; `kind` is one of `KINDS`."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read `2F0` back.

        Raises
        ------
        UserError
            The text is no action.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UserError(
                f"{text!r} is not an action.",
                next_step="Write stage, F B I or W, micro-batch: 2F0.",
            )
        return cls(int(match[1]), match[2], int(match[3]))


# Rows of actions in the order in which they are taken. A row is one stage, or all stages of one set
# of devices.
Schedule = tuple[tuple[Action, ...], ...]


def check_form(schedule: object) -> None:
    """Whether this is a schedule at all: what a user's own policy returns may be anything.

    Raises
    ------
    UserError
        It is no rows of actions.
    """
    rows = schedule if isinstance(schedule, tuple | list) else ()
    if not rows or not all(
        isinstance(row, tuple | list) and all(isinstance(action, Action) for action in row)
        for row in rows
    ):
        raise UserError(
            f"a schedule is rows of actions, one for each stage or device, got {schedule!r}.",
            next_step="Return tuples of potluck.schedule.ir.Action, or ir.loads(text).",
        )


def dumps(schedule: Schedule) -> str:
    """One line per row, actions separated by commas (the form torch.distributed.pipelining reads
    and writes).
    """
    return "\n".join(",".join(str(action) for action in row) for row in schedule)


def loads(text: str) -> Schedule:
    """Read `dumps` back.

    Raises
    ------
    UserError
        A part of the text is no action.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(
        tuple(Action.parse(item) for item in line.split(",") if item.strip()) for line in lines
    )
