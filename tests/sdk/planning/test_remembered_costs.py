"""What a cost table remembers changes neither plans nor the work that is counted."""

import pytest

from potluck.bench import small_homes
from potluck.planning.registry import BASELINES
from potluck.planning.search.work_budget import LOOK_S, MeteredTable, WorkBudget
from potluck.simulate.cost import CostTable

PLANNERS = ("gpipe", "pipedream", "hetpipe", "alpa", "asteroid", "dora", "data parallel")
SIZES = {"devices": 3, "layers": 4}


class Forgetful(CostTable):
    """Finds everything anew."""

    def recalled(self, key, make):
        return make()

    @property
    def twins(self):
        return {name: name for name in self.devices}


class ForgetfulMeter(MeteredTable):
    """The same, counted."""

    recalled = Forgetful.recalled
    twins = Forgetful.twins


@pytest.mark.parametrize("name", PLANNERS)
def test_plans_are_those_of_a_table_that_remembers_nothing(name):
    homes = [small_homes.draw(kind, "remembered", SIZES) for kind in ("plain", "tight", "batch")]
    for problem in homes:
        found = list(BASELINES[name](problem, CostTable(problem)))
        assert found == list(BASELINES[name](problem, Forgetful(problem)))


@pytest.mark.parametrize("name", PLANNERS[:4])
def test_what_is_remembered_counts_as_if_it_was_asked_again(name):
    problem = small_homes.draw("plain", "counted", SIZES)
    counted = []
    for table in (MeteredTable, ForgetfulMeter):
        budget = WorkBudget()
        plans = list(BASELINES[name](problem, table(problem, budget, lambda: False)))
        counted.append((plans, budget()))
    (plans, least_s), (same, most_s) = counted
    assert plans == same
    assert least_s == pytest.approx(most_s, abs=2 * LOOK_S)  # what is not looked at yet
