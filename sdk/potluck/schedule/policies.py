"""Schedule policies: pure functions from the pipeline's shape to each stage's order of actions."""

from collections.abc import Sequence

from potluck.errors import UserError
from potluck.schedule.ir import BACKWARD, FORWARD, Action, Schedule


def warm_up_depth(stage: int, n_stages: int, n_micro_batches: int) -> int:
    """K_p = min(2 (P - p) - 1, M): forwards before the first backward that keep 1F1B free of bubbles over slow links.

    Asteroid, section 3.2: the smallest depth that loses no concurrency when communication steps count as stages too.
    """
    return min(2 * (n_stages - stage) - 1, n_micro_batches)


def one_f_one_b(n_stages: int, n_micro_batches: int, warm_up: Sequence[int] | None = None) -> Schedule:
    """1F1B: stage p does `warm_up[p]` forwards, then one backward and one forward in turn, then the backwards left.

    At most `warm_up[p]` micro-batches are kept at once. Default depth: `warm_up_depth`.
    """
    depths = warm_up if warm_up is not None else [warm_up_depth(p, n_stages, n_micro_batches) for p in range(n_stages)]
    if len(depths) != n_stages or any(depth < 1 for depth in depths):
        raise UserError(f"1F1B needs a warm-up depth of 1 or more for each of {n_stages} stages, got {tuple(depths)}.")
    return tuple(_one_stage(p, n_micro_batches, min(depth, n_micro_batches)) for p, depth in enumerate(depths))


def _one_stage(stage: int, n_micro_batches: int, depth: int) -> tuple[Action, ...]:
    actions = [Action(stage, FORWARD, m) for m in range(depth)]
    for m in range(n_micro_batches):
        actions.append(Action(stage, BACKWARD, m))
        if m + depth < n_micro_batches:
            actions.append(Action(stage, FORWARD, m + depth))
    return tuple(actions)


def fill_drain(n_stages: int, n_micro_batches: int) -> Schedule:
    """GPipe: all forwards, then all backwards; every micro-batch is kept at once."""
    return one_f_one_b(n_stages, n_micro_batches, [n_micro_batches] * n_stages)


def forward_only(n_stages: int, n_micro_batches: int) -> Schedule:
    """Inference: every micro-batch forward, in order."""
    return tuple(tuple(Action(p, FORWARD, m) for m in range(n_micro_batches)) for p in range(n_stages))
