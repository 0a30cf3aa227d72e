import pytest
from tests.sdk.serve.serving import service, times

import potluck
from potluck.errors import UserError
from potluck.serve.scheduling.records import (
    BatchTimes,
    Frequency,
    Latency,
    Request,
    ServiceState,
    by_name,
)

NO_NUMBERS = [0, -1, float("nan"), float("inf"), None, "1", True]


def test_limits_are_public_names():
    assert potluck.Latency(0.2) == Latency(0.2)
    assert potluck.Frequency(fps=30, tolerance_s=0.1) == Frequency(30, 0.1)


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_refuses_a_limit_that_is_no_number_above_zero(value):
    with pytest.raises(UserError, match="limit_s"):
        Latency(value)
    with pytest.raises(UserError, match="fps"):
        Frequency(value)


def test_between_measured_batches_is_a_straight_line():
    measured = BatchTimes(items=(1, 4), seconds=(1.0, 4.0))
    assert [measured.at(n) for n in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 4.0]


def test_knows_nothing_beyond_the_largest_batch():
    with pytest.raises(UserError, match="measured from 1 to 8"):
        times(1.0, 1.0, largest=8).at(9)


@pytest.mark.parametrize(
    ("items", "seconds"),
    [((), ()), ((2,), (1.0,)), ((1, 1), (1.0, 1.0)), ((1, 2), (1.0,)), ((1,), (0.0,))],
)
def test_refuses_times_that_say_nothing_clear(items, seconds):
    with pytest.raises(UserError):
        BatchTimes(items=items, seconds=seconds)


def test_a_request_counts_how_often_it_was_handed_on():
    request = Request(1, "birds", 0.0, 1.0).through("a").through("a").through("b")
    assert (request.path, request.n_offloads) == (("a", "b"), 1)


def test_a_state_of_lies_cannot_be_made():
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="idle_per_s"):
            ServiceState(capacity_per_s=1.0, idle_per_s=value)


def test_two_services_of_one_name_are_refused():
    with pytest.raises(UserError, match="birds"):
        by_name([service("birds"), service("birds")])
