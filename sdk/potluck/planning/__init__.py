"""Which layers run where, in what shares. Pure: values in, values out.

`search` is our own planner, `bounds` what no plan can beat, `baselines` the planners of the
literature, `formats` their files. `evaluate` scores plans of all of them by one simulator.
"""

from potluck.planning.check import check_plan
from potluck.planning.evaluate import judge, predict
from potluck.planning.planner import make_plans
from potluck.planning.plans import Plans

__all__ = ["Plans", "check_plan", "judge", "make_plans", "predict"]
