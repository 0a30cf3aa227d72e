"""Which layers run where, in what shares. Pure: values in, values out.

This package can be called:

    potluck.plan(profile, workload, qoe=None, *, planner="potluck", budget_s=None, turns=False,
                 refine_s=0.0)

gives the plans for `workload`, a `potluck.Training` or `potluck.Inference`, on the home that `profile` knows, best
first. `profile` comes from `home.profile(model)` or `potluck.estimate(home, model)`, `qoe` holds the limits; `planner`
names one of the literature (`potluck.plan.planners.PLANNERS`), and ours looks for `budget_s`; `turns` and
`refine_s` rank its first plans as `home.deploy` would order their transfers. Where no plan holds the
limits, `potluck.errors.Infeasible` says by how much, and what would do.

    plans = potluck.plan(profile, potluck.Training(batch=64))
    run = home.deploy(plans.best)
"""

from potluck.plan.check import check_plan
from potluck.plan.judge import judge, predict
from potluck.plan.make import make_plans
from potluck.plan.plans import Plans

__all__ = ["Plans", "check_plan", "judge", "make_plans", "predict"]
