"""What `few` keeps has each value of each parameter, and lies evenly."""

from itertools import product

import pytest
from tests.few import few


def grid(*axes):
    return [dict(zip("abc", values, strict=False)) for values in product(*axes)]


def test_one_parameter_is_kept_evenly():
    assert few([{"a": i} for i in range(13)], 4) == {0, 4, 8, 12}


@pytest.mark.parametrize("sizes", [(12, 2), (2, 12), (5, 4, 3), (3, 3, 3)])
def test_each_value_of_each_parameter_is_kept(sizes):
    cases = grid(*map(range, sizes))
    kept = [cases[i] for i in few(cases, max(sizes))]
    assert len(kept) == max(sizes)
    for name, size in zip("abc", sizes, strict=False):
        assert {case[name] for case in kept} == set(range(size))


def test_values_that_no_set_takes_are_taken_for_unlike():
    assert len(few(grid([[], {}, []], range(2)), 3)) == 3


@pytest.mark.parametrize("n", [0, 1, 6, 9])
def test_so_many_are_kept_or_all(n):
    assert len(few(grid(range(3), range(2)), n)) == min(n, 6)
