"""Zero-bubble policies: weight gradients, for which nobody waits, fill the gaps of a pipeline.

After Qi et al., "Zero Bubble Pipeline Parallelism" (2023), and the compact form of DeepCEE (Wang et
al., section 3.3.1): all forwards that are available in the warm-up, then forward before backward
before weight gradient. That paper names no cap; here memory is one. All are synchronous: every
gradient is of the weights that the step began with.

Each is one list scheduling: whenever a row is free it takes the first action that is ready, by an
order of kinds. They differ in that order, and in how many micro-batches may be under way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from potluck.errors import PlanError
from potluck.schedule.bubbles import Arrivals, StageTimes, lower_bound_s
from potluck.schedule.ir import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule

FORWARD_FIRST = FORWARD + INPUT_GRADIENT + WEIGHT_GRADIENT  # F > B > W (DeepCEE, section 3.3.1)
BACKWARD_FIRST = INPUT_GRADIENT + FORWARD + WEIGHT_GRADIENT  # as 1F1B
_KINDS = FORWARD_FIRST
# a weight gradient begins if nothing else can before so much of it is done
_PATIENCE = (0.0, 1.0)
WAITING = "these rules leave every row waiting."
ROUNDED = 1 + 1e-12  # sums in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class FillRules:
    """How rows choose. `most_flying` and `most_kept`, per row: forwards whose input gradients, and
    whose weight gradients, are not done yet.
    """

    order: str
    most_flying: tuple[int, ...]
    most_kept: tuple[int, ...]
    patience: float = 0.0


class _Row:
    """What one row has done."""

    def __init__(self, stages: Sequence[int], n_micro_batches: int, parts: Sequence[int]) -> None:
        self.stages, self._n = stages, n_micro_batches
        self._parts = parts
        self.next = {(stage, kind): 0 for stage in stages for kind in _KINDS}
        self.flying = self.kept = 0
        self.free_s = 0.0
        self.actions = list[Action]()

    def due(self, kind: str) -> list[Action]:
        """The next of this kind of every stage: of gradients the oldest first, and of forwards the
        stage furthest on, which frees memory sooner.
        """
        found = [
            Action(stage, kind, self.next[stage, kind])
            for stage in reversed(self.stages)
            if self.next[stage, kind] < self._n * self._parts[stage]
        ]
        if kind == FORWARD or len(found) < 2:
            return found
        return sorted(found, key=lambda a: a.micro_batch / self._parts[a.stage])

    def has_room(self, action: Action, most_flying: int, most_kept: int) -> bool:
        """Whether memory has room for it, and then still for one forward of each later stage of the
        row: so the oldest micro-batch can always go on.
        """
        if action.kind != FORWARD:
            return True
        later = len(self.stages) - 1 - self.stages.index(action.stage)
        return self.flying + 1 + later <= most_flying and self.kept + 1 + later <= most_kept

    def begin(self, action: Action, start_s: float, seconds: float) -> None:
        """Take this one."""
        self.next[action.stage, action.kind] += 1
        self.flying += {FORWARD: 1, INPUT_GRADIENT: -1}.get(action.kind, 0)
        self.kept += {FORWARD: 1, WEIGHT_GRADIENT: -1}.get(action.kind, 0)
        self.free_s = start_s + seconds
        self.actions.append(action)


def list_schedule(times: StageTimes, n_micro_batches: int, rules: FillRules) -> Schedule:
    """Rows of actions, each taken as soon as its row is free and it is ready, by these rules.

    Micro-batches keep their order in every stage and kind, so that sums of gradients do, too.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M; where stages have their own, of the largest.
    rules
        How rows choose.

    Raises
    ------
    PlanError
        A row has no room for one micro-batch, or too little for the stages behind it.
    """
    rows = _listed(times, n_micro_batches, rules)
    if rows is None:
        raise PlanError(WAITING)
    return tuple(tuple(row.actions) for row in rows)


def _listed(
    times: StageTimes, n_micro_batches: int, rules: FillRules, most_s: float = inf
) -> list[_Row] | None:
    """None where it would take `most_s` or longer, or never end."""
    _check_room(times, rules)
    arrivals = Arrivals(times, split=True)
    rows = [_Row(stages, n_micro_batches, times.parts) for stages in times.rows]
    left = n_micro_batches * sum(times.parts) * len(_KINDS)
    row_of, looks = times.row_of, [(0.0, r) for r in range(len(rows))]  # when a row looks again
    while looks:
        now_s, r = heappop(looks)
        row = rows[r]
        action = _choose(row, r, now_s, times, arrivals, rules) if row.free_s <= now_s else None
        if action is not None:
            row.begin(action, now_s, times.action_s(action.stage, action.kind))
            left -= 1
            if row.free_s >= most_s:
                return None
            heappush(looks, (row.free_s, r))
            for stage, came_s in arrivals.done(action, row.free_s):
                heappush(looks, (came_s, row_of[stage]))
    return None if left else rows


def _choose(
    row: _Row, r: int, now_s: float, times: StageTimes, arrivals: Arrivals, rules: FillRules
) -> Action | None:
    """What a row takes now."""
    wake_s = inf  # when the next that is on its way arrives
    for kind in rules.order:
        for action in row.due(kind):
            ready_s = arrivals.ready_s(action)
            if ready_s is None or not row.has_room(
                action, rules.most_flying[r], rules.most_kept[r]
            ):
                continue
            if ready_s > now_s:
                wake_s = min(wake_s, ready_s)
                continue
            if kind == WEIGHT_GRADIENT:
                enough_s = rules.patience * times.weight_s[action.stage]
                if wake_s - now_s < enough_s:
                    continue
            return action
    return None


def _check_room(times: StageTimes, rules: FillRules) -> None:
    for stages, flying, kept in zip(times.rows, rules.most_flying, rules.most_kept, strict=True):
        if min(flying, kept) < len(stages):
            raise PlanError(
                f"stages {', '.join(map(str, stages))} have no memory for one micro-batch.",
                next_step="Use smaller micro-batches, or another plan.",
            )


def _best(times: StageTimes, n_micro_batches: int, tried: Sequence[FillRules]) -> Schedule:
    """The soonest by these times of what the rules make; of equals the first."""
    best, best_s = list[_Row](), inf
    enough_s = lower_bound_s(times, n_micro_batches) * ROUNDED
    for rules in dict.fromkeys(tried):
        rows = _listed(times, n_micro_batches, rules, best_s)
        if rows is not None:
            best, best_s = rows, max(row.free_s for row in rows)
        if best_s <= enough_s:
            break
    if not best:
        raise PlanError(WAITING, next_step="Use smaller micro-batches, or another plan.")
    return tuple(tuple(row.actions) for row in best)


def _rules(
    times: StageTimes, n_micro_batches: int, flying: Sequence[int], kept: int
) -> list[FillRules]:
    """Rules of both orders and every patience, within memory. `flying` and `kept` count
    micro-batches of the whole row, the largest of all stages.
    """
    each = [len(stages) * max(times.parts[p] for p in stages) for stages in times.rows]
    most_kept = tuple(
        max(len(stages), min(n * min(kept, n_micro_batches), limit))
        for stages, n, limit in zip(times.rows, each, times.most_kept, strict=True)
    )
    most_flying = tuple(
        max(len(stages), min(n * depth, limit))
        for stages, n, depth, limit in zip(times.rows, each, flying, most_kept, strict=True)
    )
    return [
        FillRules(order=order, most_flying=most_flying, most_kept=most_kept, patience=patience)
        for order in (FORWARD_FIRST, BACKWARD_FIRST)
        for patience in _PATIENCE
    ]


def _depths(times: StageTimes, name: str) -> list[int]:
    """P - p of every row, where none comes back: its stages follow each other.

    Raises
    ------
    PlanError
        Stages come back to a row.
    """
    if _comes_back(times):
        raise PlanError(
            f"{name} is for stages that never come back to their devices.",
            next_step="Use zb-compact, or zb-v for stages on a, b, b, a.",
        )
    return [len(times.rows) - r for r in range(len(times.rows))]


def _comes_back(times: StageTimes) -> bool:
    return any(stages != tuple(range(stages[0], stages[-1] + 1)) for stages in times.rows)


def zb_h1(times: StageTimes, n_micro_batches: int) -> Schedule:
    """ZB-H1 (Qi et al., section 2.2): the memory of 1F1B on its first stage, P micro-batches, and
    its warm-up, P - p; a third of its bubbles where F = B = W.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M.
    """
    depths = _depths(times, "zb-h1")
    tried = _rules(times, n_micro_batches, depths, len(depths))
    return _best(times, n_micro_batches, tried)


def zb_2p(times: StageTimes, n_micro_batches: int) -> Schedule:
    """ZB-2p (Qi et al., section 3): twice that memory, for bubbles that go towards none where
    transfers take no time. The soonest of its warm-ups.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M.
    """
    depths = _depths(times, "zb-2p")
    n = len(depths)
    warm_ups = [2 * depth - 1 for depth in depths], [2 * n] * n
    tried = [
        rules for flying in warm_ups for rules in _rules(times, n_micro_batches, flying, 2 * n)
    ]
    return _best(times, n_micro_batches, tried)


def zb_compact(times: StageTimes, n_micro_batches: int) -> Schedule:
    """Compact zero-bubble (DeepCEE, section 3.3.1): every forward that is available, F > B > W, as
    far as memory has room; weight gradients fill each gap.

    Where that is sooner, gradients go before forwards or warm-ups are less.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M.
    """
    n = len(times.rows)
    warm_ups = [[n_micro_batches] * n]
    if not _comes_back(times):
        warm_ups += [[2 * (n - r) - 1 for r in range(n)], [n - r for r in range(n)]]
    tried = [
        rules
        for flying in warm_ups
        for rules in _rules(times, n_micro_batches, flying, n_micro_batches)
    ]
    return _best(times, n_micro_batches, tried)


def zb_v(times: StageTimes, n_micro_batches: int) -> Schedule:
    """ZB-V (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): two chunks a row,
    there and back again, with the memory of 1F1B: 2 n chunks on each of n rows.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M.

    Raises
    ------
    PlanError
        Stages are not on a, b, c, c, b, a.
    """
    n = len(times.rows)
    if times.rows != tuple((r, 2 * n - 1 - r) for r in range(n)):
        raise PlanError(
            "zb-v needs stages that go there and back again over the same devices.",
            next_step="Use zb-h1, or a plan whose stages are on a, b, b, a.",
        )
    return _best(times, n_micro_batches, _chunked(times, n_micro_batches, n))


def zb_interleaved(times: StageTimes, n_micro_batches: int) -> Schedule:
    """Interleaved 1F1B with backwards in two parts: rows of several stages, round after round.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M.

    Raises
    ------
    PlanError
        Stages do not go round the same devices several times.
    """
    n, n_stages = len(times.rows), times.n_stages
    if n == n_stages or times.rows != tuple(tuple(range(r, n_stages, n)) for r in range(n)):
        raise PlanError(
            "zb-interleaved needs stages that go round the same devices several times.",
            next_step="Use zb-h1, or a plan whose stages are on a, b, a, b.",
        )
    # micro-batches that `interleaved` keeps on its first row, which keeps most
    chunks = n_stages // n
    kept = -(-((chunks - 1) * n + 2 * (n - 1) + 1) // chunks)
    return _best(times, n_micro_batches, _chunked(times, n_micro_batches, kept))


def _chunked(times: StageTimes, n_micro_batches: int, kept: int) -> list[FillRules]:
    return _rules(times, n_micro_batches, [kept] * len(times.rows), kept)


TimedPolicy = Callable[[StageTimes, int], Schedule]
ZERO_BUBBLE: dict[str, TimedPolicy] = {
    "zb-h1": zb_h1,
    "zb-2p": zb_2p,
    "zb-compact": zb_compact,
    "zb-v": zb_v,
    "zb-interleaved": zb_interleaved,
}
