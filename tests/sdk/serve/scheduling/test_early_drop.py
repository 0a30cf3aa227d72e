"""Who is given up when not all can be met."""

from random import Random

import pytest
from tests.sdk.serve.serving import request

from potluck.serve.scheduling.early_drop import fitting, given_up, late

BATCH_S = (0.0, *(0.1 + 0.01 * n for n in range(1, 17)))  # many together are much faster


def waiting(*limits_s):
    return [request(number, limit_s=limit_s) for number, limit_s in enumerate(limits_s)]


def ids(requests):
    return [each.id for each in requests]


def test_who_is_late_is_looked_for_only_in_front_of_those_who_go():
    those = waiting(0.1, 1.0, 0.2, 1.0, 0.3)
    assert ids(late(those, 0.0, 0.5, 1)) == [0]
    assert ids(late(those, 0.0, 0.5, 2)) == [0, 2]
    assert ids(late(those, 0.0, 0.5, 9)) == [0, 2, 4]


def test_a_batch_fits_its_most_urgent_wherever_it_stands():
    assert fitting(waiting(9.0, 9.0, 0.12), 0.0, BATCH_S) == 2
    assert fitting(waiting(0.01, 9.0), 0.0, BATCH_S) == 1  # somebody must go


def test_nobody_is_given_up_while_a_smaller_batch_leaves_time_for_all():
    assert given_up(waiting(0.12, *[9.0] * 15), 0.0, [], BATCH_S, 16) == []
    # two smaller batches of two replicas are in time, too
    assert given_up(waiting(0.12, 0.12, *[0.4] * 14), 0.0, [0.0], BATCH_S, 16) == []


def test_few_who_are_too_urgent_are_given_up_for_many():
    those = waiting(0.12, 0.15, *[0.27] * 14)
    assert ids(given_up(those, 0.0, [], BATCH_S, 16)) == [0, 1]


def test_many_are_not_given_up_for_a_few():
    those = waiting(*[0.2] * 10, *[0.27] * 3)
    assert given_up(those, 0.0, [], BATCH_S, 16) == []


@pytest.mark.parametrize("seed", range(100))
def test_giving_up_loses_no_more_than_a_smaller_batch(seed):
    rng = Random(seed)
    limits_s = sorted(rng.uniform(0.11, 1.0) for _ in range(rng.randint(2, 60)))
    those = waiting(*limits_s)
    given = given_up(those, 0.0, [], BATCH_S, 16)
    if given:
        rest = [each for each in those if each not in given]
        n_small = fitting(those[:16], 0.0, BATCH_S)
        small = n_met(those[:n_small], 0.0) + n_met(those[n_small:], BATCH_S[n_small])
        assert n_met(rest, 0.0) >= small


def n_met(those, start_s):
    """Served by one replica in full batches from then on, the late ones left out."""
    served, those = 0, [*those]
    while those:
        seconds = BATCH_S[min(16, len(those))]
        left_out = late(those, start_s, seconds, min(16, len(those)))
        those = [each for each in those if each not in left_out]
        served += len(those[:16])
        those, start_s = those[16:], start_s + seconds
    return served
