"""What a row takes among the number of rows that is cheapest is found without asking each."""

from random import Random

import pytest

from potluck.planning.bounds.row_routes import LowerHull


@pytest.mark.parametrize("seed", range(20))
def test_the_least_of_all_points_is_found_at_any_prices(seed):
    draw = Random(seed)
    grid = draw.choice([3, 50, 10**6])  # of few places many are equal, or in a line
    points = [(draw.randrange(grid), draw.randrange(grid)) for _ in range(draw.randint(1, 30))]
    hull = LowerHull(points)
    for a, b in [(1, 0), (0, 1), (1, 1), *((draw.random(), draw.random() ** 4) for _ in range(50))]:
        x, y = hull.least(a, b)
        assert (x, y) in points
        assert a * x + b * y == pytest.approx(min(a * x + b * y for x, y in points), abs=1e-9)
