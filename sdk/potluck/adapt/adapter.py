"""When a run renews the order of its transfers, and when it goes over to another plan: Dora's
runtime adapter (section 4.3). Pure.

A look compares some steps with their prediction. Below 10 % of change only the order of transfers
is renewed; what is larger, or lasts, is planned for again. A switch must pay for itself: over the
steps that are left, and in what has been lost since the change was seen. So a change that comes and
goes costs at most about twice what an oracle would pay, as in the ski-rental problem. And it must
still look good at the next look, whose noise is another, unless it saves far more than noise can
feign.

What no step shows any more (a device that was left, for it was slow) is asked from time to time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from potluck import units
from potluck.adapt.conditions import DEVICE, Conditions, Thing
from potluck.adapt.switch_cost import SwitchCost
from potluck.planning.plans import is_thrifty
from potluck.profile.correction_factors import SHARE
from potluck.records import Layer, Plan, Problem, Stage

STEADY_FRAC = 0.03  # a choice: less is taken for noise
SMALL_FRAC = 0.10  # Dora, section 5: below, only transfers are ordered anew
LASTING_LOOKS = 3  # a small change that is still there is planned for
WORTH_FRAC = 0.05  # a choice: predictions err, and less is no reason to switch
ORDER_WORTH_FRAC = 0.02
ORDER_STEPS = 2.0  # that an order of transfers costs: a pipeline is finished and filled again
LOOKS_TO_SWITCH = 2
# a choice: looks err by some percent, so what saves so much more need not be seen again, if it has
# lasted longer than a hiccup
CLEAR_FRAC, CLEAR_S = 0.2, 3.0
FORGET_STEPS = 256  # then what no step shows any more may be as its profile says again

NOTHING = "nothing"
ORDER = "order"
PLAN = "plan"
STAY = "stay"
WAIT = "wait"
SWITCH = "switch"
FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the adapter decided after `step` steps, and why.

    `action`: "order" (transfers are ordered anew), "switch" (to another plan), "wait" (a switch
    has not paid yet), "stay", "failed" (the old plan stands). Per step `saved_frac` is saved of the
    time (or, where joules decide, of the joules); a switch costs `cost_s`.
    """

    step: int
    action: str
    change_frac: float = 0.0
    saved_frac: float = 0.0
    cost_s: float = 0.0
    words: str = ""
    plan: Plan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSeen:
    """Some steps up to number `step`: seconds of one, measured and predicted (under what the
    adapter knew), and measured by predicted seconds of every device and medium. `steps_left`: None
    where nobody knows.
    """

    step: int
    step_s: float
    predicted_s: float
    ratios: Mapping[Thing, float]
    steps_left: int | None = None


class Adapter:
    """What is known of the conditions of a run, and what to do about it.

    Ask `look` after some steps, then, as it says, `order` or `choose`.

    Parameters
    ----------
    step
        The run's number of steps (or requests) at the beginning.
    noun
        What they are called: "step" or "request".
    """

    def __init__(self, step: int = 0, noun: str = "step") -> None:
        self._noun = noun
        self.known = Conditions()
        self.cost = SwitchCost()
        self._first_step = step
        self._planned = self._ordered = Conditions()  # what was planned for, and ordered
        self._small = self._looks = 0  # in a row: of small changes; for one other plan
        self._since: float | None = None  # the step at which a change began, as far as was seen
        self._looked = step  # at the latest look
        self._errors: dict[
            tuple[Stage, ...], float
        ] = {}  # of plans that ran: measured by predicted
        self._seen_at: dict[Thing, int] = {}
        self._patience: dict[Thing, int] = {}

    def look(self, look: StepsSeen, plan: Plan) -> str:
        """Take in what was measured; says what is to be done: NOTHING, ORDER or PLAN.

        Parameters
        ----------
        look
            At the latest steps.
        plan
            That they followed.
        """
        self.known = self.known.times({t: _damped(ratio) for t, ratio in look.ratios.items()})
        self._forget(look)
        before, self._looked = self._looked, look.step
        # what the conditions explain is in the ratios; the rest is this plan's own
        self._errors[plan.stages] = look.step_s / look.predicted_s
        change_frac, _ = self.known.change(self._planned)
        if change_frac < STEADY_FRAC:
            self._small = self._looks = 0
            self._since = None
            return NOTHING
        self._small += 1
        if self._since is None:
            self._since = (before + look.step) / 2  # somewhere between the two
        if change_frac >= SMALL_FRAC or self._small >= LASTING_LOOKS:
            return PLAN
        return ORDER if self.known.change(self._ordered)[0] >= STEADY_FRAC else NOTHING

    def doubtful(self, shown: Collection[Thing]) -> tuple[Thing, ...]:
        """Those that were slower than usual when they were last seen, and no step shows: whether
        they still are is worth a question.

        Parameters
        ----------
        shown
            By the steps of now.
        """
        known = self.known
        return tuple(
            thing
            for thing, factor in known.factors.items()
            if thing not in shown and factor >= (1 + SMALL_FRAC) * known.usual(thing)
        )

    def update_slowness(self, slowness: Mapping[Thing, float], step: int) -> None:
        """Take in what such a question has shown.

        Parameters
        ----------
        slowness
            Of each that has answered: seconds by those of its profile.
        step
            The latest.
        """
        self.known = self.known.updated(slowness)
        self._seen_at.update(dict.fromkeys(slowness, step))

    def _forget(self, look: StepsSeen) -> None:
        """What no step has shown for long may have become better; each time for twice as long."""
        for thing in look.ratios:
            self._seen_at[thing] = look.step
        old = [
            thing
            for thing, step in self._seen_at.items()
            if look.step - step >= self._patience.get(thing, FORGET_STEPS)
        ]
        for thing in old:
            del self._seen_at[thing]
            self._patience[thing] = 2 * self._patience.get(thing, FORGET_STEPS)
        self.known = self.known.without(old)

    def order(self, look: StepsSeen, before_s: float, after_s: float) -> Decision:
        """Whether to order the transfers anew.

        Parameters
        ----------
        look
            The latest.
        before_s, after_s
            Of a step in the old order and in the new one, predicted under what is known now.
        """
        saved_frac = 1 - after_s / before_s
        self._ordered = self.known
        change_frac, thing = self.known.change(self._planned)
        n_left = self._left(look)
        pays = saved_frac >= ORDER_WORTH_FRAC and saved_frac * n_left >= ORDER_STEPS
        return Decision(
            step=look.step,
            action=ORDER if pays else STAY,
            change_frac=change_frac,
            saved_frac=saved_frac,
            cost_s=ORDER_STEPS * look.step_s,
            words=f"{self._noun} {look.step}: {self._changed(thing)}; another order of the "
            f"transfers saves {units.percent(saved_frac)} of a {self._noun}, "
            f"{units.number(n_left, self._noun)} to go: "
            f"{'they are ordered anew' if pays else 'the order stays'}.",
        )

    def choose(
        self, look: StepsSeen, plan: Plan, others: Sequence[Plan], problem: Problem
    ) -> Decision:
        """Whether to go over to another plan.

        Parameters
        ----------
        look
            The latest.
        plan
            The one at work.
        others
            What can take its place, in any order; all judged for `problem`, as `plan` is.
        problem
            Under the conditions of now.
        """
        change_frac, thing = self.known.change(self._planned)
        now = self._weight(plan, problem, plan)
        best = min(others, key=lambda other: self._weight(other, problem, plan), default=plan)
        saved_frac = 1 - self._weight(best, problem, plan) / now
        summary = f"{self._noun} {look.step}: {self._changed(thing)}"
        if saved_frac < WORTH_FRAC:
            self.settle()
            return Decision(
                step=look.step,
                action=STAY,
                change_frac=change_frac,
                saved_frac=max(0.0, saved_frac),
                words=f"{summary}; no plan saves {units.percent(WORTH_FRAC)} or more, "
                "so this one stays.",
            )
        self._looks += 1
        n_left = self._left(look)
        since = look.step - (look.step if self._since is None else self._since)
        cost_s = self.cost.seconds(plan, best, problem, look.step_s)
        saved_s = saved_frac * look.step_s
        summary = (
            f"{summary}; {_called(best)} would save "
            f"{units.percent(saved_frac)} of {_what(problem, self._noun)}, a switch costs about "
            f"{units.duration(cost_s)}"
        )
        if saved_s * n_left < cost_s:
            self.settle()
            action, why = STAY, f"{units.number(n_left, self._noun)} to go do not pay for it"
        elif saved_s * since < cost_s or not self._is_sure(saved_frac, since * look.step_s):
            action, why = WAIT, "it has not lasted long enough to pay for it yet"
        else:
            action = SWITCH
            why = (
                f"{units.number(n_left, self._noun)} to go save {units.duration(saved_s * n_left)}"
            )
        return Decision(
            step=look.step,
            action=action,
            change_frac=change_frac,
            saved_frac=saved_frac,
            cost_s=cost_s,
            words=f"{summary}: {why}.",
            plan=best if action == SWITCH else None,
        )

    def _is_sure(self, saved_frac: float, lasted_s: float) -> bool:
        """Whether this is no noise and no hiccup."""
        is_clear = saved_frac >= CLEAR_FRAC and lasted_s >= CLEAR_S
        return is_clear or self._looks >= LOOKS_TO_SWITCH

    @property
    def is_settled(self) -> bool:
        """Whether no change is open: none was seen, or it was decided about."""
        return self._since is None

    def settle(self) -> None:
        """What is known now was planned for: only what changes from here is news."""
        self._planned = self._ordered = self.known
        self._small = self._looks = 0
        self._since = None

    def _left(self, look: StepsSeen) -> int:
        """Steps to go; where nobody knows, as many again as have been."""
        return look.step - self._first_step if look.steps_left is None else look.steps_left

    def _weight(self, plan: Plan, problem: Problem, current: Plan) -> float:
        """What a step costs: seconds; where joules decide, Dora's eq. (2). A plan that never ran
        is held for as much worse than predicted as the one at work.
        """
        error = self._errors.get(plan.stages, self._errors.get(current.stages, 1.0))
        latency_s = (plan.latency_s or 0.0) * error
        if not is_thrifty(problem) or plan.energy_j is None or problem.qoe.latency_s is None:
            return latency_s
        late_s = max(0.0, latency_s - problem.qoe.latency_s)
        return plan.energy_j * error + problem.qoe.lambda_j_per_s * late_s

    def _changed(self, thing: Thing) -> str:
        """What has changed most, for people."""
        kind, name = thing
        now, before = self.known.of(thing), self._planned.of(thing)
        does = "computes" if kind == DEVICE else "carries"
        return (
            f"{name} {does} at {1 / now:.2f} of its profile's pace (planned for {1 / before:.2f})"
        )


def _damped(ratio: float) -> float:
    """What may be noise is followed half of the way, as profiles do; what is large, at once."""
    return ratio**SHARE if max(ratio, 1 / ratio) - 1 < SMALL_FRAC else ratio


def _called(plan: Plan) -> str:
    """Its planner and devices, and the rows that stages take at a time, where they differ."""
    words = f"{plan.planner} on {', '.join(plan.devices)}"
    if len(plan.sizes) == 1:
        return words
    rows = ", ".join(str(stage.rows) for stage in plan.stages)
    return f"{words} with micro-batches of {rows} rows"


def _what(problem: Problem, noun: str) -> str:
    return "the joules" if is_thrifty(problem) else f"a {noun}'s time"


def same_sums(one: Plan, other: Plan, layers: Sequence[Layer]) -> bool:
    """Whether both plans train alike: the same micro-batches of a step, and wherever batch norm
    learns from the rows that it sees, or masks are drawn for them, those of the layer's own stage;
    for batch norm also their shares.

    Sums over rows may still be in another order, as when a stage has replicas, or takes its rows
    in micro-batches of its own size.

    Parameters
    ----------
    one, other
        Plans for one model.
    layers
        Its layers.
    """
    if (one.micro_batch, one.n_micro_batches) != (other.micro_batch, other.n_micro_batches):
        return False
    stages = [[s for s in plan.stages for _ in range(s.start, s.stop)] for plan in (one, other)]
    return all(
        not layer.sees_micro_batch
        or (a.rows == b.rows and (not layer.norm_values or sorted(a.shares) == sorted(b.shares)))
        for layer, a, b in zip(layers, *stages, strict=True)
    )
