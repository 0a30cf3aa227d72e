"""Whatever paired notebooks, members and a worker say, the core raises nothing, and all that it
wants done can be done.

The last line of defence is not in use here: `handle` itself is called, and anything that it raises
fails the test.
"""

from functools import partial

import pytest
from tests.agent.core.core_attack import CorePlay
from tests.fuzz import storm

pytestmark = pytest.mark.usefixtures("small_chunks")

MOVES = 14
N_SEQUENCES, N_LONG = 1_500, 50_000
WORKERS = {"honest": False, "hostile": True}


@pytest.mark.few(1)
@pytest.mark.parametrize("worker", WORKERS)
def test_nothing_that_is_said_breaks_the_core(worker, record_property):
    storm(
        partial(CorePlay, hostile=WORKERS[worker]), first=0, n_sequences=N_SEQUENCES, n_moves=MOVES
    )
    record_property("inputs", N_SEQUENCES)


@pytest.mark.long
@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("part", range(10))
def test_nothing_that_is_said_for_long_breaks_the_core(worker, part, record_property):
    first = 1_000_000 + part * N_LONG
    storm(
        partial(CorePlay, hostile=WORKERS[worker]), first=first, n_sequences=N_LONG, n_moves=MOVES
    )
    record_property("inputs", N_LONG)
