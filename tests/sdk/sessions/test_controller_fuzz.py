"""Whatever agents say, the controller raises nothing, and all that it wants sent can be made.

The last line of defence is not in use here: `handle` itself is called, and anything that it raises
fails the test.
"""

import pytest
from tests.fuzz import storm
from tests.sdk.sessions.controller_attack import ControllerPlay

pytestmark = pytest.mark.usefixtures("small_chunks")

MOVES = 20
N_SEQUENCES, N_LONG = 3_000, 100_000


def test_nothing_that_agents_say_breaks_the_controller(record_property):
    storm(ControllerPlay, first=0, n_sequences=N_SEQUENCES, n_moves=MOVES)
    record_property("inputs", N_SEQUENCES)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_nothing_that_agents_say_for_long_breaks_the_controller(part, record_property):
    storm(ControllerPlay, first=1_000_000 + part * N_LONG, n_sequences=N_LONG, n_moves=MOVES)
    record_property("inputs", N_LONG)
