"""Local steps: regions train by themselves, and from time to time take one outer step together.

Douillard et al., "DiLoCo" (2023), Algorithm 1: each of R regions takes H steps of its own from the
same weights. The mean of how far they went is the gradient of an outer step with Nesterov momentum.
A choice of the user that changes the result, unlike everything else here: only a tenth, or a
hundredth, as much crosses the slow links, and a step is of a region's batch alone. It is the
synchronous step on all regions' batches where H = 1, the outer rate is 1 without momentum, by SGD,
and the loss is a plain mean over rows. (Of a weighted mean no region knows what the others divide
by; of a sum, the outer step takes the mean of the regions' sums.)

Glossary: theta the weights, `every` H, `before` theta of the round before, `gone` the outer
gradient.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from potluck.argument_checks import number_of
from potluck.errors import DeviceError, HomeError, PotluckError, UserError
from potluck.handle import Handle, Task
from potluck.run.batches import as_tuple

if TYPE_CHECKING:
    import torch

    from potluck.run.run import Run

    Weights = Mapping[str, torch.Tensor]

OnRound = Callable[["Round"], object]
LOST = (HomeError, DeviceError)  # what a region raises of which a device is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterStep:
    """SGD with Nesterov momentum on the weights of all regions; the paper's rate and momentum."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("lr", self.lr), ("momentum", self.momentum)):
            number = number_of(value)
            if number is None or not isfinite(number):
                raise UserError(f"the outer step's {name} is a number, got {value!r}.")
        if self.lr <= 0:
            raise UserError(f"the outer step's lr is above 0, got {self.lr!r}.")
        if not 0 <= self.momentum < 1:
            raise UserError(f"the outer step's momentum is 0 to below 1, got {self.momentum!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One outer step. `step`: inner steps of a region so far; `losses[region]`: of its own steps,
    none of one that was lost.

    `apart_frac`: the norm of how far the region that strayed most was from the mean of all, by the
    norm of the weights: 0 where they were of one mind. `exchanged_bytes`: weights that came to the
    notebook and went back. `lost`: why, of each region that has no part in it.
    """

    step: int
    losses: tuple[tuple[float, ...], ...]
    apart_frac: float
    exchanged_bytes: int
    lost: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHistory:
    """What a training by local steps was."""

    every: int
    rounds: tuple[Round, ...] = ()

    @property
    def losses(self) -> tuple[float, ...]:
        """Of each batch, in the order of the data."""
        return tuple(
            region[i]
            for each in self.rounds
            for i in range(max(map(len, each.losses)))
            for region in each.losses
            if i < len(region)
        )

    def __repr__(self) -> str:
        if not self.rounds:
            return "LocalHistory(no round)"
        apart = max(each.apart_frac for each in self.rounds)
        nbytes = sum(each.exchanged_bytes for each in self.rounds)
        n_short = sum(bool(each.lost) for each in self.rounds)
        without = f"; {n_short} rounds without a region that was lost" if n_short else ""
        return (
            f"LocalHistory({len(self.rounds)} rounds of {self.every} local steps, last loss "
            f"{self.losses[-1]:.4g}; regions up to {apart:.2%} apart; {nbytes / 1e6:.1f} MB "
            f"exchanged{without}; not the weights of one machine)"
        )


def local_steps(
    runs: "Sequence[Run]",
    data: Iterable[Any],
    *,
    every: int,
    outer: OuterStep | None = None,
    epochs: int = 1,
    on_round: OnRound | None = None,
) -> Handle[LocalHistory]:
    """Train one model in several regions, each its own run, with an outer step after every so many
    steps. The weights are those of no single machine, but for `every=1`, plain SGD and a loss that
    is a plain mean over rows.

    Batches go to the regions in turns. All begin with the weights of the first; after the last
    round each run has the weights of all. A device that is lost is recovered from within its
    region. Where a region cannot, or is lost while weights are exchanged, the others go on without
    it: its batches of that round are theirs in the next. Each round tries whether it is back.

    Parameters
    ----------
    runs
        Deployed for training, on devices of their own; each with its inner optimizer, which keeps
        its state over the rounds.
    data
        Batches of tensors, inputs and then targets; read once for every epoch.
    every
        H, the steps of a region between two outer steps.
    outer
        Default: the paper's, a rate of 0.7 and momentum 0.9. An outer rate of 1 without momentum
        is the plain mean of the regions (local SGD).
    epochs
        How often to go through `data`.
    on_round
        Called with each `Round` when it is over, in the background thread.

    Returns
    -------
    Handle[LocalHistory]
        Losses, how far regions were apart, and what was exchanged, round by round.

    Raises
    ------
    UserError
        There are fewer than two runs, they share a device or are of other models, one keeps a
        moving average of its weights, or a number is not what it should be.
    PotluckError
        The last region is lost.
    """
    _check(runs, every=every, epochs=epochs)
    if epochs > 1 and iter(data) is data:
        raise UserError("data that can be read once is for one epoch.", next_step="Give a list.")
    regions = [RegionRun(run) for run in runs]
    together = OuterOptimizer(regions, outer or OuterStep())

    def work(task: Task) -> LocalHistory:
        batches = chain.from_iterable(data for _ in range(epochs))
        history = LocalHistory(every=every)
        together.begin()
        while turns := [*islice(batches, every * len(together.rejoined()))]:
            if task.cancelled:
                break
            done, undone = together.round(turns)
            batches = chain(undone, batches)
            if done is None:
                continue
            history = LocalHistory(every=every, rounds=(*history.rounds, done))
            task.update(0.5, f"round {len(history.rounds)}, loss {history.losses[-1]:.3g}")
            if on_round is not None:
                on_round(done)
        return history

    return Handle(work, f"training {runs[0].plan.model} by local steps")


def _check(runs: "Sequence[Run]", *, every: int, epochs: int) -> None:
    for name, value in (("every", every), ("epochs", epochs)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} is a whole number from 1 up, got {value!r}.")
    if len(runs) < 2:
        raise UserError(
            f"local steps are for two regions or more, got {len(runs)} runs.",
            next_step="Deploy a plan for each region, or fit the one run.",
        )
    if len({run.signature for run in runs}) > 1:
        raise UserError("local steps train one model, these runs are of several.")
    devices = [name for run in runs for name in run.plan.devices]
    shared = sorted({name for name in devices if devices.count(name) > 1})
    if shared:
        raise UserError(
            f"{', '.join(shared)} has a part in two regions.",
            next_step="Give each region devices of its own.",
        )
    if any(run.live_weights.are_averaged for run in runs):
        raise UserError(
            "a run keeps a moving average of its weights (ema), and outer steps would not be in "
            "it.",
            next_step="Take another optimizer, without ema, and local steps then.",
        )
    still = [", ".join(run.plan.devices) for run in runs if not run.plan.training]
    if still:
        raise UserError(f"the run on {still[0]} is for inference: local steps train.")


class RegionRun:
    """A run as one of several.

    Parameters
    ----------
    run
        Deployed for training.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run

    def rows(self, batch: Any) -> int:
        """Of a batch, as `fit` takes it.

        Parameters
        ----------
        batch
            Inputs and targets.
        """
        return len(as_tuple(batch, self._run.parts.model.arguments)[0])

    def fit(self, batches: Sequence[Any]) -> Handle[Any]:
        """Steps of its own."""
        return self._run.fit(list(batches))

    @property
    def step(self) -> int:
        """Steps so far."""
        return self._run.step

    @property
    def trained(self) -> frozenset[str]:
        """Names of the weights that it trains."""
        return self._run.live_weights.trained

    def weights(self) -> "dict[str, torch.Tensor]":
        """As they are on its devices."""
        return self._run.live_weights.pull()

    def put(self, weights: "Weights") -> None:
        """Onto its devices, beside the state of its optimizer."""
        self._run.live_weights.push(weights)


class OuterOptimizer:
    """The outer optimizer, and what goes between the regions and it.

    Parameters
    ----------
    regions
        All of them.
    outer
        Rate and momentum.
    """

    def __init__(self, regions: Sequence[RegionRun], outer: OuterStep) -> None:
        self.regions, self.outer = regions, outer
        self.before: Weights = {}
        self.velocity: dict[str, torch.Tensor] = {}
        self.lost: dict[int, str] = {}
        self.last_words: PotluckError = HomeError("no region is left.")

    def begin(self) -> None:
        """All regions at the weights of the first."""
        self.before = self.regions[0].weights()
        for region in self.regions[1:]:
            region.put(self.before)

    def rejoined(self) -> list[int]:
        """The regions that are there: also one that was lost, if it takes the weights of all.

        Raises
        ------
        PotluckError
            There is none: what the last one said.
        """
        for r in list(self.lost):
            with suppress(PotluckError):
                self.regions[r].put(self.before)
                del self.lost[r]
        if not self.there:
            raise self.last_words
        return self.there

    @property
    def there(self) -> list[int]:
        """The regions that are not lost."""
        return [r for r in range(len(self.regions)) if r not in self.lost]

    def round(self, batches: Sequence[Any]) -> tuple[Round | None, list[Any]]:
        """Local steps on these batches in turns, then one outer step: what it was, and the batches
        of regions that were lost meanwhile. None: all were.

        Parameters
        ----------
        batches
            In the order of the data.
        """
        there = self.there
        parts = {r: batches[place :: len(there)] for place, r in enumerate(there)}
        parts = {r: part for r, part in parts.items() if part}
        fits: dict[int, Handle[Any]] = {}
        for r, part in parts.items():
            with self._noting(r):
                fits[r] = self.regions[r].fit(part)
        came: dict[int, Weights] = {}
        losses: dict[int, tuple[float, ...]] = {}
        for r, fit in fits.items():
            with self._noting(r):
                learned = fit.wait().losses[-len(parts[r]) :]
                came[r], losses[r] = self.regions[r].weights(), tuple(learned)
        undone = [batch for r, part in parts.items() if r not in came for batch in part]
        if not came:
            return None, undone
        rows = [sum(map(self.regions[0].rows, parts[r])) for r in came]
        mean = mean_of([*came.values()], rows)
        self.before = self.stepped(mean)
        for r in self.there:
            with self._noting(r):
                self.regions[r].put(self.before)
        nbytes = sum(t.numel() * t.element_size() for t in mean.values())
        return Round(
            step=max(self.regions[r].step for r in came),
            losses=tuple(losses.get(r, ()) for r in range(len(self.regions))),
            apart_frac=max(apart_frac(mean, each) for each in came.values()),
            exchanged_bytes=nbytes * (len(came) + len(self.there)),
            lost=dict(self.lost),
        ), undone

    @contextmanager
    def _noting(self, r: int) -> Iterator[None]:
        """A region that is lost meanwhile is one of the lost."""
        try:
            yield
        except LOST as error:
            self.lost[r], self.last_words = str(error), error

    def stepped(self, mean: "Weights") -> "dict[str, torch.Tensor]":
        """The weights after an outer step from `before`; buffers are the mean of the regions'.

        Parameters
        ----------
        mean
            Of the regions' weights and buffers.
        """
        found = dict(mean)
        trained = self.regions[0].trained
        outer = self.outer
        for name in trained & mean.keys():
            before = self.before[name].double()
            gone = before - mean[name].double()
            move = gone
            if outer.momentum:
                velocity = self.velocity.get(name)
                fresh = gone if velocity is None else outer.momentum * velocity + gone
                self.velocity[name] = fresh
                move = gone + outer.momentum * fresh  # Nesterov, as torch.optim.SGD
            found[name] = (before - outer.lr * move).to(mean[name].dtype)
        return found


def mean_of(regions: "Sequence[Weights]", rows: Sequence[int]) -> "dict[str, torch.Tensor]":
    """Of the regions' weights, by the rows that each had; whole numbers are the first region's.

    Parameters
    ----------
    regions
        Weights by name.
    rows
        Of each region in the round.
    """
    total, found = sum(rows), dict(regions[0])
    for name, first in regions[0].items():
        if first.is_floating_point():
            parts = (r * each[name].double() for r, each in zip(rows, regions, strict=True))
            found[name] = (sum(parts) / total).to(first.dtype)  # type: ignore[union-attr]
    return found


def apart_frac(mean: "Weights", region: "Weights") -> float:
    """The norm of how far a region is from the mean, by the norm of the mean.

    Parameters
    ----------
    mean, region
        Weights by name.
    """
    floats = [name for name, tensor in mean.items() if tensor.is_floating_point()]
    far = sum(float((mean[name] - region[name]).double().square().sum()) for name in floats)
    norm = sum(float(mean[name].double().square().sum()) for name in floats)
    return float((far / norm) ** 0.5) if norm else 0.0
