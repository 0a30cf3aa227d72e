"""Every planner by name, all with one signature: `planner(problem, table) -> Iterator[Plan]`, for
`judge` to judge.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from potluck.planning import feasibility
from potluck.planning.anytime import plan_anytime
from potluck.planning.baselines.alpa import plan_alpa
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.baselines.dapple import plan_dapple
from potluck.planning.baselines.data_parallel import plan_data_parallel
from potluck.planning.baselines.deepcee import plan_deepcee
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.baselines.edgeshard import plan_edgeshard
from potluck.planning.baselines.gpipe import plan_gpipe
from potluck.planning.baselines.hetpipe import plan_hetpipe
from potluck.planning.baselines.metis import plan_metis
from potluck.planning.baselines.pipedream import plan_pipedream
from potluck.planning.baselines.single_device import plan_single
from potluck.planning.check import check_problem
from potluck.planning.evaluate import judge
from potluck.planning.plans import Plans, preference
from potluck.records import Plan, Problem
from potluck.simulate import cost, direct_simulation

Planner = Callable[[Problem, cost.CostTable | None], Iterator[Plan]]

BASELINES: Mapping[str, Planner] = {
    "single": plan_single,
    "data parallel": plan_data_parallel,  # equal shares, and balanced as in EDDL
    "gpipe": plan_gpipe,
    "edgeshard": plan_edgeshard,
    "pipedream": plan_pipedream,
    "dapple": plan_dapple,
    "hetpipe": plan_hetpipe,
    "alpa": plan_alpa,
    "metis": plan_metis,
    "asteroid": plan_hybrid,
    "dora": plan_dora,
}
# whose plans have schedules of their own: compared with ours when it chooses among them, too
SCHEDULING: Mapping[str, Planner] = {"deepcee": plan_deepcee}
PLANNERS: Mapping[str, Planner] = {**BASELINES, **SCHEDULING, "potluck": plan_anytime}
MAX_CANDIDATES, MAX_JUDGED = 4000, 24  # of a planner's own candidates; of those it thinks fastest


def ask(problem: Problem, name: str) -> Plans:
    """The plans of one planner that hold the limits when the simulator judges those which it thinks
    fastest.

    Raises
    ------
    Infeasible
        None of its plans holds the limits.
    """
    check_problem(problem)
    table = cost.CostTable(problem)
    simulator = direct_simulation.Direct(problem, table)
    found = list(islice(PLANNERS[name](problem, table), MAX_CANDIDATES))
    found.sort(key=lambda plan: plan.latency_s or float("inf"))
    judged = [judge(problem, plan, table, simulator) for plan in found[:MAX_JUDGED]]
    holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
    if not holding:
        raise feasibility.infeasible(problem, judged)
    return Plans(tuple(sorted(holding, key=lambda plan: preference(plan, problem))))
