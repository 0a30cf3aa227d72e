"""DAPPLE: synchronous pipelines with replicated stages for equal devices, by the latency around the
pivot stage.

Fan et al., "DAPPLE", PPoPP 2021: L = T_w + T_s + T_e around the stage with the fewest bubbles,
minimised by a program over (layers planned, devices used), one new stage at a time.

Where we differ: Asteroid's program (`hybrid`), which generalises it, runs on mean devices and
links; its pivot is the dominant step. Device placement: the orders of `build.orders` stand for
fresh-first, append-first and scatter-first.
"""

from collections.abc import Iterator

from potluck.planning.baselines.asteroid import Search
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import mean_problem, orders, rebuilt
from potluck.records import Plan, Problem
from potluck.simulate import cost


def plan_dapple(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """Its plans for the mean devices, on the real ones in every order of `orders`."""
    table = table or cost.CostTable(problem)
    mean = table.sibling(mean_problem(problem))
    names = [device.name for device in mean.problem.devices]
    for micro_batch in candidates.micro_batches(problem):
        search = Search(mean, names, micro_batch)
        search.cuts = candidates.cuts(problem, 16)
        for found in search.run():
            plan = Plan(
                planner="dapple",
                model=problem.model,
                stages=found.stages,
                micro_batch=micro_batch,
                n_micro_batches=search.n_micro_batches,
                training=search.training,
                latency_s=found.seconds,
            )
            for order in orders(table):
                real = rebuilt(table, "dapple", plan, order)
                if real is not None:
                    yield real
