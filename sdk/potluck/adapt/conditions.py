"""What devices and media are like now, against their profile: how many times longer computing and
sending take. Pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from potluck.profile.from_runs import piece_seconds
from potluck.profile.links_from_runs import Flow, ratios_of, slowed
from potluck.records import LayerCost, Problem, Trace
from potluck.schedule import Compiled

DEVICE, MEDIUM = "device", "medium"
Thing = tuple[str, str]  # kind, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Per device and medium, by how much its seconds are to be multiplied.

    `first`: what each factor was when it was first seen, which is how its profile errs; what came
    later is a change. What has not been seen is held for no better than the best of its kind was at
    first, and for no better than its profile says: else an error that a profile makes everywhere
    would speak for those that no plan has used yet. A later change of one says nothing of another.
    """

    factors: Mapping[Thing, float] = field(default_factory=dict)
    first: Mapping[Thing, float] = field(default_factory=dict)

    def of(self, thing: Thing) -> float:
        """The factor of this device or medium."""
        return self.factors[thing] if thing in self.factors else self.usual(thing)

    def usual(self, thing: Thing) -> float:
        """Its factor while nothing has changed: its own at first, or as its kind was seen to err;
        for no better than its profile.
        """
        errors = [factor for (kind, _), factor in self.first.items() if kind == thing[0]]
        return max(1.0, self.first.get(thing, min(errors, default=1.0)))

    def times(self, ratios: Mapping[Thing, float]) -> "Conditions":
        """What was predicted under these conditions lasts so many times longer.

        Parameters
        ----------
        ratios
            Measured by predicted seconds.
        """
        now = {thing: self.of(thing) * ratio for thing, ratio in ratios.items()}
        return Conditions(factors={**self.factors, **now}, first={**now, **self.first})

    def updated(self, slowness: Mapping[Thing, float]) -> "Conditions":
        """With what was asked of those that no step shows: it may be over, but nobody is taken for
        better than usual by a short question.

        Parameters
        ----------
        slowness
            Seconds of the answer by those of the profile.
        """
        now = {thing: self.usual(thing) * max(1.0, ratio) for thing, ratio in slowness.items()}
        return Conditions(factors={**self.factors, **now}, first=self.first)

    def without(self, things: Collection[Thing]) -> "Conditions":
        """As if these had not been seen."""
        factors, first = (
            {thing: factor for thing, factor in each.items() if thing not in things}
            for each in (self.factors, self.first)
        )
        return Conditions(factors=factors, first=first)

    def change(self, before: "Conditions") -> tuple[float, Thing]:
        """The largest change of anything (0.1: 10 % slower, or faster by as much), and of what."""
        found = {
            thing: _apart(self.of(thing), before.of(thing))
            for thing in {**self.factors, **before.factors}
        }
        worst = max(found, key=lambda thing: found[thing], default=("", ""))
        return found.get(worst, 0.0), worst


def _apart(one: float, other: float) -> float:
    return max(one / other, other / one) - 1.0


def ratios(
    predicted: Trace,
    measured: Trace,
    compiled: Compiled,
    problem: Problem,
    transfers: Mapping[Flow, tuple[float, float]],
) -> dict[Thing, float]:
    """Measured by predicted seconds, of every device and medium that took part.

    A device's is the median over the pieces of the model that it ran, forward and backward, each
    by its median over the steps; a medium's, over the flows that it limits.

    Parameters
    ----------
    predicted, measured
        Of these programs; under the same conditions, one hopes.
    compiled
        What both followed.
    problem
        That the prediction was made for.
    transfers
        Per ordered pair of devices: the seconds that a value was predicted to take, and took.
    """
    expected, taken = piece_seconds(predicted, compiled), piece_seconds(measured, compiled)
    found: dict[Thing, list[float]] = {}
    for piece, seconds in taken.items():
        if expected.get(piece, 0.0) > 0 and seconds > 0:
            found.setdefault((DEVICE, piece[0]), []).append(seconds / expected[piece])
    for medium, each in ratios_of(problem.network, transfers).items():
        found[MEDIUM, medium] = each
    return {thing: median(each) for thing, each in found.items()}


def under(problem: Problem, conditions: Conditions) -> Problem:
    """The problem as it is under these conditions.

    Parameters
    ----------
    problem
        As profiled.
    conditions
        Against that profile.
    """
    media = {medium.name: conditions.of((MEDIUM, medium.name)) for medium in problem.network.media}
    return replace(
        problem,
        costs={
            device: tuple(_slower(cost, conditions.of((DEVICE, device))) for cost in costs)
            for device, costs in problem.costs.items()
        },
        network=slowed(problem.network, media),
    )


def _slower(cost: LayerCost, factor: float) -> LayerCost:
    return replace(
        cost,
        forward_s=tuple(seconds * factor for seconds in cost.forward_s),
        backward_s=tuple(seconds * factor for seconds in cost.backward_s),
    )
