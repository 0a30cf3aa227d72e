"""A rule about the temperature holds where nobody tells the temperature any more."""

import random

import pytest

from potluck_agent.cli.availability import LOOK_S, UNKNOWN_S, Availability
from potluck_agent.owner_rules import TEMP_MARGIN_C, DeviceConditions, OwnerRules
from potluck_agent.system_sleep import SystemSleep

LIMIT_C = 80.0


class HeardLoop:
    """What it was told last: why it has to leave; empty: it may stay."""

    stopping = False

    def __init__(self):
        self.reason = ""

    def state(self):
        return {"runs": {}}

    def leave(self, reason, within_s, *, for_good=False):
        self.reason = reason

    def stay(self):
        self.reason = ""


@pytest.mark.parametrize("limit_c", [LIMIT_C, None])
def test_who_may_not_be_hot_takes_no_part_while_no_sensor_tells(limit_c):
    rng = random.Random(0)
    told, loop = LIMIT_C - 30, HeardLoop()
    now_s = told_s = 0.0
    rules = OwnerRules(max_temp_c=limit_c, min_battery_frac=0.1)
    found = Availability(
        loop,
        rules,
        60.0,
        lambda: DeviceConditions(temp_c=told, battery_frac=1.0),
        SystemSleep(watched=False),
    )
    n_left = 0
    for _ in range(2000):
        now_s += LOOK_S
        told = None if rng.random() < 0.97 else LIMIT_C - TEMP_MARGIN_C - 20 * rng.random()
        told_s = told_s if told is None else now_s
        found.look(now_s)
        must_leave = limit_c is not None and now_s - told_s >= UNKNOWN_S
        assert bool(loop.reason) == must_leave
        assert ("tell no temperature" in loop.reason) == must_leave
        n_left += must_leave
    assert (n_left > 100) == (limit_c is not None)
