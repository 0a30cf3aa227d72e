"""Which layers run where, in what shares. Pure: values in, values out."""

from potluck.plan.check import check_plan
from potluck.plan.judge import judge, predict
from potluck.plan.make import make_plans
from potluck.plan.plans import Plans

__all__ = ["Plans", "check_plan", "judge", "make_plans", "predict"]
