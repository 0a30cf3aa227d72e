"""Other planners' formats on the papers' cases: what a round trip loses, how long writing, reading
and judging take.

Every training problem goes out as PipeDream's graph.txt and Metis' files; graph.txt is read back
and compared. A plan of our form of PipeDream is printed as its optimizer prints one, read, and
judged on the shared links of the case.
"""

import time
from collections.abc import Mapping
from statistics import median

from potluck.bench import paper_cases
from potluck.bench.harness import Result
from potluck.errors import Infeasible, UserError
from potluck.planning.building_blocks.candidates import micro_batches
from potluck.planning.formats import judged, metis, pipedream
from potluck.planning.registry import ask
from potluck.records import Plan, Problem

SETTINGS: Mapping[str, float] = {"every": 4}
GOALS = {"graph_txt_time_error_max_frac": ("<=", 0.01), "judged_worse_max_ratio": ("<=", 1.0)}


def run(settings: Mapping[str, float]) -> Result:
    """Every so manyth training case of the papers."""
    chosen = [case for case in (*paper_cases.dora(), *paper_cases.asteroid()) if case.train][
        :: int(settings["every"])
    ]
    error = list[float]()
    export_s = list[float]()
    n_metis = 0
    judge_s, ratios = list[float](), list[float]()
    for case in chosen:
        problem = case.problem()
        since = time.perf_counter()
        graph = pipedream.of_problem(problem, min(micro_batches(problem)))
        again = pipedream.read(pipedream.write(graph))
        export_s.append(time.perf_counter() - since)
        error.append(abs(_seconds(again) / _seconds(graph) - 1))
        n_metis += _fits_metis(problem)
        try:
            theirs = ask(problem, "pipedream").best
        except Infeasible:
            continue
        since = time.perf_counter()
        found = judged(printed(theirs), problem).best
        judge_s.append(time.perf_counter() - since)
        ratios.append((found.latency_s or 0.0) / (theirs.latency_s or 1.0))
    figures = {
        "graph_txt_time_error_max_frac": max(error),
        "graph_txt_export_s_max": max(export_s),
        "judge_s_median": median(judge_s or [0.0]),
        "judged_worse_max_ratio": max(ratios, default=0.0),
        "n_cases": float(len(chosen)),
        "n_judged": float(len(ratios)),
        "n_metis_can_take": float(n_metis),
    }
    return Result(name="formats", figures=figures, settings=dict(settings), goals=GOALS)


def printed(plan: Plan) -> str:
    """The stages as PipeDream's optimizer prints them: (first, one past the last), seconds,
    replicas.
    """
    return "".join(
        f"({stage.start}, {stage.stop}) 0.0 {len(stage.devices)}\n" for stage in plan.stages
    )


def _seconds(graph: pipedream.PipeDreamGraph) -> float:
    return sum(operator.forward_s + operator.backward_s for operator in graph.operators)


def _fits_metis(problem: Problem) -> bool:
    try:
        return bool(metis.files(problem))
    except UserError:  # more kinds of devices than it has names
        return False
