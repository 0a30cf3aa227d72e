"""Whatever agents say, the controller raises nothing, and all that it wants sent can be made.

The last line of defence is not in use here: `handle` itself is called, and anything that it raises fails the test.
"""

import pytest
from tests.fuzz import storm
from tests.sdk.sessions.controller_attack import ControllerPlay

MOVES = 20


def test_nothing_that_agents_say_breaks_the_controller():
    storm(ControllerPlay, first=0, n_sequences=10_000, n_moves=MOVES)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_nothing_that_agents_say_for_long_breaks_the_controller(part):
    storm(ControllerPlay, first=1_000_000 + part * 100_000, n_sequences=100_000, n_moves=MOVES)
