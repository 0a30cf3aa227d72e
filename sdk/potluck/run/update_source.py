"""Where the rule of a run's steps comes from: an optimizer of ours or the user's own of torch, and
a schedule of its rates. Both are looked at again for each step.

A torch optimizer is a description here: its class, its groups of parameters and their settings. Its
`step` is never called: devices do that. What is changed in its `param_groups` meanwhile, by a
scheduler or by hand, holds for the steps that are handed out from then on.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.run.optimizers import Optimizer, check_steps
from potluck.run.torch_optimizers import check_hooks, groups_of, optimizer_of
from potluck.run.weight_update import (
    ParameterGroup,
    Update,
    changed_settings,
    keep_alike,
    with_rates,
)
from potluck_wire.optimizers import KINDS

if TYPE_CHECKING:
    import torch

    from potluck.run.engine import RunEngine

Factor = Callable[[int], float]
Members = tuple[tuple["torch.Tensor", ...], ...]
STEP, EPOCH = "step", "epoch"
_GIVE_AGAIN = "Give the optimizer again: run.fit(data, optimizer=optimizer)."
_SCHEDULE_GIVES = "It gives a factor of the rate: schedule=lambda step: min(1.0, (step + 1) / 100)."
_RATES_OF_TORCH = "Look at the optimizer's param_groups, and at what changes them."


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlace:
    """A scheduler of class `name` goes on with `every` step or epoch, and began at number `began`
    of them: below zero where it had gone on before the first step, or the first epoch of a `fit`.
    """

    name: str
    every: str
    began: int


class UpdateSource:
    """The optimizer and the schedule of a run, as the user gave them.

    Parameters
    ----------
    update
        As it is when training begins.
    torchs
        The user's optimizer, where it is torch's.
    schedule
        A scheduler of torch's, or a function from the number of a step to a factor of the rate.
    every
        Whether a scheduler goes on with each step, or with each epoch.
    members
        Of each group of the user's optimizer the parameters, as `update` has them; default: those
        of now.
    """

    def __init__(
        self,
        update: Update,
        torchs: Any = None,
        schedule: Any = None,
        every: str = STEP,
        members: "Members | None" = None,
    ) -> None:
        self.update, self.torchs = update, torchs
        self._members = _members_of(torchs) if members is None else members
        self._schedule, self._every = schedule, every
        self._began = 0  # the step or epoch at which a scheduler stood at its beginning
        self._base = update.optimizers
        self._tried: tuple[Optimizer, ...] = ()  # the latest that a step can be made with
        if schedule is not None:
            self.update = with_rates(update, _scheduled(schedule, update))

    def with_update(self, update: Update) -> "UpdateSource":
        """The same optimizer and schedule, with other limits.

        Parameters
        ----------
        update
            With them.
        """
        return UpdateSource(update, self.torchs, self._schedule, self._every, self._members)

    def with_schedule(self, update: Update, schedule: Any, every: str) -> "UpdateSource":
        """The same optimizer, with other limits and another schedule.

        Parameters
        ----------
        update, schedule, every
            As for the class.
        """
        return UpdateSource(update, self.torchs, schedule, every, self._members)

    def read_again(self, model: Any, *, has_begun: bool) -> "UpdateSource":
        """The user's optimizer as it is now, where its groups, or settings that decide what is
        computed, are others than those that devices know.

        Parameters
        ----------
        model
            Whose weights it is for.
        has_begun
            Steps were taken, of which something may be kept.

        Raises
        ------
        UserError
            As for `source_of`; or what was kept for its steps so far is of no use to it now.
        """
        now = self._of_torch()
        is_of_old = not self.is_regrouped and _classes(now) == _classes(self._base)
        if is_of_old and not _fixed(self.update, self.changed(now), now):
            return self
        groups = groups_of(model, self.torchs)
        update = replace(self.update, optimizer=groups[0].optimizer, groups=_needed(groups))
        check_steps(update.optimizers, [parameter.dtype for parameter in model.trained])
        if has_begun and not keep_alike(update, self.update):
            raise UserError(
                "the optimizer was changed so that it keeps something else of each weight.",
                next_step="Make a new one, which begins without anything kept.",
            )
        return UpdateSource(update, self.torchs, self._schedule, self._every)

    @property
    def is_regrouped(self) -> bool:
        """Whether the groups of the user's optimizer hold other parameters than they did."""
        now = _members_of(self.torchs)
        return len(now) != len(self._members) or any(
            len(one) != len(other) or any(a is not b for a, b in zip(one, other, strict=True))
            for one, other in zip(now, self._members, strict=True)
        )

    def _of_torch(self) -> tuple[Optimizer, ...]:
        return tuple(optimizer_of(group, self.torchs) for group in self.torchs.param_groups)

    @property
    def is_scheduled(self) -> bool:
        """Whether settings are expected to change from step to step."""
        return self._schedule is not None

    def settings(self, step: int, dtypes: Collection[str]) -> tuple[Optimizer, ...]:
        """Of each group, the optimizer with the settings of this step.

        Parameters
        ----------
        step
            Its number; steps are counted from 0.
        dtypes
            Of the weights that are trained.

        Raises
        ------
        UserError
            They are not what they can be, or no step can be made with them.
        """
        by_function = self._schedule is not None and not is_scheduler(self._schedule)
        factor = _factor(self._schedule, step) if by_function else 1.0
        what = f" with schedule({step}) = {factor:g}" if by_function else ""
        try:
            found = self._now()
            if by_function:
                found = tuple(each.times(factor) for each in found)
            if found != self._tried:
                check_steps(found, dtypes)
        except UserError as error:
            way_on = _SCHEDULE_GIVES if by_function else _RATES_OF_TORCH
            raise UserError(
                f"step {step} (the first is 0) cannot be taken{what}: {error}",
                next_step="" if error.next_step else way_on,
            ) from error
        self._tried = found
        return found

    def _now(self) -> tuple[Optimizer, ...]:
        """Of each group, the optimizer as it is now, without the factor of a function."""
        if self.torchs is None:
            return self._base
        check_hooks(self.torchs)
        found = self._of_torch()
        if len(found) != len(self._base):
            raise UserError(
                "the optimizer has got another number of parameter groups.", next_step=_GIVE_AGAIN
            )
        if self.is_regrouped:
            raise UserError(
                "the groups of the optimizer hold other parameters than they did.",
                next_step=_GIVE_AGAIN,
            )
        if _classes(found) != _classes(self._base):
            raise UserError(
                "decoupled_weight_decay of the optimizer was changed while it trains.",
                next_step=_GIVE_AGAIN,
            )
        return found

    def changed(self, settings: tuple[Optimizer, ...]) -> set[str]:
        """Which settings are others than those that devices know, and do not come with each step.

        Parameters
        ----------
        settings
            Of a step.
        """
        return changed_settings(self.update.optimizers, settings) - set(self.update.rated)

    def rate(self, names: set[str], settings: tuple[Optimizer, ...]) -> None:
        """From now on these come with each step.

        Parameters
        ----------
        names
            Of settings.
        settings
            Of the steps.

        Raises
        ------
        UserError
            One of them cannot: it decides what is computed.
        """
        if fixed := _fixed(self.update, names, settings):
            raise UserError(
                f"{fixed[0]} of the optimizer was changed while it trains.", next_step=_GIVE_AGAIN
            )
        self.update = with_rates(self.update, names)

    def rates(self, settings: tuple[Optimizer, ...]) -> "torch.Tensor | None":
        """Those that come with a step: [groups, settings]; None where none do.

        Parameters
        ----------
        settings
            Of the step.
        """
        import torch

        if not self.update.rated:
            return None
        return torch.tensor(self.update.rates(settings), dtype=torch.float64)

    @property
    def place(self) -> "SchedulePlace | None":
        """Where a schedule stands; None without one."""
        if self._schedule is None:
            return None
        return SchedulePlace(
            name=type(self._schedule).__name__, every=self._every, began=self._began
        )

    def catch_up(self, step: int, epoch: int, saved: "SchedulePlace | None", *, stood: int) -> None:
        """A scheduler that is new goes on where that of the saved run stood.

        Parameters
        ----------
        step, epoch
            The next ones.
        saved
            Of the run that this one goes on with; None: a run that begins, or has no scheduler.
        stood
            The epoch of that run, which another `fit` may count anew.
        """
        place, now = self.place, step if self._every == STEP else epoch
        if place is None or not is_scheduler(self._schedule):
            return
        made = steps_made(self._schedule)
        is_same = saved is not None and (saved.name, saved.every) == (place.name, place.every)
        if saved is not None and is_same and not made:
            for number in range(saved.began, step if self._every == STEP else stood):
                self._go_on(self._every, number)
        self._began = now - steps_made(self._schedule)

    def at_rest(self, update: Update) -> Update:
        """A rule to save: with the rates of now, where they were changed by hand.

        Those of a schedule are its own, and it is given again.

        Parameters
        ----------
        update
            As devices know it.
        """
        if self.torchs is None or self.is_scheduled or update.kind != self.update.kind:
            return update
        if self.is_regrouped:
            return update
        return update.with_settings(self._now())

    def step_over(self, step: int) -> None:
        """A step was handed out.

        Parameters
        ----------
        step
            Its number.

        Raises
        ------
        UserError
            A scheduler cannot go on.
        """
        self._go_on(STEP, step)

    def epoch_over(self, epoch: int) -> None:
        """An epoch was handed out.

        Parameters
        ----------
        epoch
            Its number.

        Raises
        ------
        UserError
            A scheduler cannot go on.
        """
        self._go_on(EPOCH, epoch)

    def _go_on(self, what: str, number: int) -> None:
        if self._every == what and is_scheduler(self._schedule):
            self.torchs._opt_called = True  # as its step does; else torch warns
            with _named(f"{type(self._schedule).__name__}.step() after {what} {number}"):
                self._schedule.step()


@contextmanager
def _named(call: str) -> Iterator[None]:
    """What the user's schedule raises is told with the step that it was asked for."""
    try:
        yield
    except Exception as error:  # it is code of others
        raise UserError(
            f"the schedule has failed: {call} raised {type(error).__name__}: {error!s:.200}"
        ) from error


def _factor(schedule: Factor, step: int) -> float:
    """What a function gives for a step, as a number."""
    with _named(f"schedule({step})"):
        given = schedule(step)
    try:
        if not isinstance(given, str | bytes):
            return float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # of others' numbers, too
        pass
    raise UserError(f"schedule({step}) gave {given!r:.60}, no number.", next_step=_SCHEDULE_GIVES)


def _classes(optimizers: Collection[Optimizer]) -> list[type[Optimizer]]:
    return [type(each) for each in optimizers]


def _members_of(optimizer: Any) -> "Members":
    """The parameters of each group of a torch optimizer."""
    return tuple(tuple(group["params"]) for group in getattr(optimizer, "param_groups", ()))


def _fixed(update: Update, names: Collection[str], now: Collection[Optimizer]) -> list[str]:
    """Those of these settings that cannot change while it trains: they decide what is computed, or
    what is kept for it, as a momentum above zero does.
    """
    kind = KINDS[update.kind]
    states = [each.settings for each in (*update.optimizers, *now)]
    found = {name for name in names if isinstance(kind.settings.get(name), bool | None)}
    for name in {*names} & {*kind.when.values()}:
        if len({bool(each.get(name)) for each in states}) > 1:
            found.add(name)
    return sorted(found)


def _scheduled(schedule: Any, update: Update) -> set[str]:
    """The settings that a schedule changes, as far as it says so; others are seen later."""
    if not getattr(schedule, "cycle_momentum", False):
        return {"lr"}
    return {"lr", "momentum" if "momentum" in KINDS[update.kind].settings else "beta1"}


def is_scheduler(schedule: Any) -> bool:
    """Whether this is one of torch's, or is like one: it changes an optimizer with each `step`."""
    return hasattr(schedule, "step") and hasattr(schedule, "optimizer")


def steps_made(scheduler: Any) -> int:
    """How often a scheduler has gone on; of one that does not count itself, such as torch's
    `ChainedScheduler`, by what it keeps of its parts.
    """
    if hasattr(scheduler, "last_epoch"):
        return max(0, int(scheduler.last_epoch))
    parts = (
        scheduler.state_dict().get("_schedulers", ()) if hasattr(scheduler, "state_dict") else ()
    )
    return max((int(part.get("last_epoch", 0)) for part in parts), default=0)


def source_of(
    model: Any,
    optimizer: Any,
    *,
    schedule: Any = None,
    every: str = STEP,
    clip_norm: float | None = None,
    norm_order: float = 2.0,
    clip_value: float | None = None,
    average: float | None = None,
    one_step_late: int | None = None,
) -> UpdateSource:
    """What a user gave, read and checked.

    Parameters
    ----------
    model
        Whose weights it is for.
    optimizer
        One of ours or of torch's.
    schedule
        A scheduler of torch's, or a function from the number of a step to a factor of the rate.
    every
        "step" or "epoch": with what a scheduler goes on.
    clip_norm, norm_order, clip_value, average, one_step_late
        As for `Update`.

    Raises
    ------
    UserError
        Something of it is not supported, or does not belong together.
    """
    _check_schedule(schedule, every)
    _check_own(schedule, optimizer)
    limits: dict[str, Any] = {
        "clip_norm": clip_norm,
        "norm_order": norm_order,
        "clip_value": clip_value,
        "average": average,
        "one_step_late": one_step_late,
    }
    if isinstance(optimizer, Optimizer):
        update = Update(optimizer=optimizer, **limits)
        theirs = None
    else:
        groups = groups_of(model, optimizer)
        update = Update(optimizer=groups[0].optimizer, groups=_needed(groups), **limits)
        theirs = optimizer
    check_steps(update.optimizers, [parameter.dtype for parameter in model.trained])
    return UpdateSource(update, theirs, schedule, every)


def in_use(engine: "RunEngine") -> UpdateSource:
    """The source of the latest steps of a run; where none were taken yet, its rule alone.

    Parameters
    ----------
    engine
        Of a run that trains.
    """
    assert engine.compiled_plan.optimizer is not None
    return engine.source or UpdateSource(replace(engine.compiled_plan.optimizer, rated=()))


def has_begun(engine: "RunEngine") -> bool:
    """Whether a step was handed out, of this run and not of one that it goes on with.

    Parameters
    ----------
    engine
        Of a run that trains.
    """
    return engine.next_step > engine.first_step


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """What a call of `fit` says of the rule of its steps; None: as it is in use, but for
    `one_step_late`, which each call says anew.
    """

    optimizer: Any = None
    schedule: Any = None
    schedule_every: str = STEP
    clip_norm: float | None = None
    norm_order: float | None = None
    clip_value: float | None = None
    ema: float | None = None
    one_step_late: int | None = None

    def over(self, model: Any, before: UpdateSource, *, has_begun: bool) -> UpdateSource:
        """The source of the steps of this call. A new optimizer begins without what is not given
        beside it.

        Parameters
        ----------
        model
            Whose weights it is for.
        before
            The one in use.
        has_begun
            Steps were taken with it.

        Raises
        ------
        UserError
            As for `source_of`.
        """
        given: dict[str, Any] = {
            name: value
            for name, value in (
                ("clip_norm", self.clip_norm),
                ("norm_order", self.norm_order),
                ("clip_value", self.clip_value),
                ("average", self.ema),
            )
            if value is not None
        }
        given["one_step_late"] = self.one_step_late
        optimizer = self.optimizer
        if optimizer is None and is_scheduler(self.schedule):
            optimizer = self.schedule.optimizer
        if optimizer is not None and optimizer is not before.torchs:
            return source_of(
                model, optimizer, schedule=self.schedule, every=self.schedule_every, **given
            )
        _check_schedule(self.schedule, self.schedule_every)
        _check_own(self.schedule, before.torchs)
        if "clip_norm" in given or "clip_value" in given:
            given = {"clip_norm": None, "clip_value": None, **given}
        source = before
        if optimizer is not None:
            source = before.read_again(model, has_begun=has_begun)
        update = replace(source.update, **given)
        if self.schedule is None:
            return source.with_update(update)
        return source.with_schedule(update, self.schedule, self.schedule_every)


def _check_own(schedule: Any, optimizer: Any) -> None:
    if is_scheduler(schedule) and optimizer is not schedule.optimizer:
        raise UserError(
            "the schedule is one of another optimizer.",
            next_step="Give its own: optimizer=schedule.optimizer.",
        )


def _check_schedule(schedule: Any, every: str) -> None:
    if every not in (STEP, EPOCH):
        raise UserError(f'schedule_every is "step" or "epoch", got {every!r}.')
    if type(schedule).__name__ == "ReduceLROnPlateau":
        raise UserError(
            "ReduceLROnPlateau goes by a metric, which no step has.",
            next_step="Call it behind each epoch: on_epoch=lambda epoch, history: "
            "plateau.step(run.evaluate(data, score)); the rates of its optimizer are looked at.",
        )
    if schedule is not None and not callable(schedule) and not is_scheduler(schedule):
        raise UserError(
            "a schedule is one of torch's, or a function of a step, got "
            f"{type(schedule).__name__}.",
            next_step="schedule=lambda step: min(1.0, (step + 1) / 100)",
        )
    if every == EPOCH and not is_scheduler(schedule):
        raise UserError('schedule_every="epoch" is for a scheduler of torch\'s.')


def _needed(groups: tuple[ParameterGroup, ...]) -> tuple[ParameterGroup, ...]:
    """One group of all parameters is no group."""
    return groups if len(groups) > 1 else ()
