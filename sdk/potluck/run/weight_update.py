"""How the weights of a run change in a step: the optimizer with its groups of parameters, limits of
gradients, a moving average. Pure.

It is part of a compiled plan, of every snapshot and of a saved run: whatever a run goes through, a
step is taken by the same rule. Settings that change from step to step (`rated`) come with each
batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

from potluck.argument_checks import number_of
from potluck.errors import UserError
from potluck.run.optimizers import AdamW, Optimizer, read_optimizer
from potluck.schedule.step_update import NormLimit, StepUpdate
from potluck_wire.optimizers import AVERAGE, HALVES, KINDS, OLDER, Setting, slot_dtype, slots

GROWTH_STEPS = 2000  # the factor of a scaled loss doubles after so many finite steps, as torch's
ANY_NORM = 1e300
MAX_LATE = 1 << 20  # steps in a row: what goes through a pipeline at once has no more rows
# fields that are limited: what `fit` calls them, and the largest
_NUMBERS = (
    ("clip_norm", "clip_norm", inf),
    ("clip_value", "clip_value", inf),
    ("average", "ema", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters, as devices know them, and the optimizer with their settings."""

    parameters: tuple[str, ...]
    optimizer: Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How weights change in a step.

    `groups`: of one class of optimizers, and every parameter is in one; none: `optimizer` is for
    all. `clip_norm` limits the norm of all gradients (of `norm_order`: 2 is Euclid's),
    `clip_value` each of their numbers. `average`: the decay of a moving average of the weights.
    `rated`: the settings that come with each step. `one_step_late`: of so many steps in a row each
    takes weights that lack the gradients of the one before it (`schedule.late_walk`); None: of no
    steps.
    """

    optimizer: Optimizer
    groups: tuple[ParameterGroup, ...] = ()
    clip_norm: float | None = None
    norm_order: float = 2.0
    clip_value: float | None = None
    average: float | None = None
    rated: tuple[str, ...] = ()
    one_step_late: int | None = None

    def __post_init__(self) -> None:
        for name, called, high in _NUMBERS:
            given = getattr(self, name)
            if given is not None:
                number = _number(called, given, 0, high)
                object.__setattr__(self, name, number if isfinite(number) else None)
        order = number_of(self.norm_order)
        if order is None or not order > 0:
            raise UserError(f"norm_order is a number above 0, or inf, got {self.norm_order!r:.60}.")
        object.__setattr__(self, "norm_order", order)
        if self.clip_norm is not None and self.clip_value is not None:
            raise UserError(
                "clip_norm and clip_value are given: which comes first is not known.",
                next_step="Give one of them.",
            )
        self._check_late()

    def _check_late(self) -> None:
        late = self.one_step_late
        if late is None:
            return
        if isinstance(late, bool) or not isinstance(late, int) or not 2 <= late <= MAX_LATE:
            raise UserError(
                f"one_step_late is a number of steps from 2 to {MAX_LATE:,}, got {late!r:.60}."
            )
        if self.clip_norm is not None:
            raise UserError(
                "clip_norm looks at the gradients of all stages before any takes its step; updates "
                "that come one step late do not wait for each other.",
                next_step="Give clip_value, or leave out one_step_late.",
            )

    # --- its parts --------------------------------------------------------------------------------

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """One for each group."""
        return tuple(group.optimizer for group in self.groups) or (self.optimizer,)

    @property
    def kind(self) -> str:
        """What programs call the optimizer of all groups: SGD has momentum where one of them
        has.
        """
        return next((o.kind for o in self.optimizers if o.kind == "momentum"), self.optimizer.kind)

    def _settings(self, optimizer: Optimizer) -> dict[str, Setting]:
        """All of them, for this kind."""
        given = optimizer.settings
        if optimizer.kind != self.kind:
            given["momentum"] = 0.0
        return {**KINDS[self.kind].settings, **given}

    def _of(self, parameter: str) -> Optimizer:
        for group in self.groups:
            if parameter in group.parameters:
                return group.optimizer
        return self.optimizer

    def with_settings(self, optimizers: Sequence[Optimizer]) -> "Update":
        """The same with other settings.

        Parameters
        ----------
        optimizers
            One for each group.
        """
        if len(optimizers) != len(self.optimizers):
            return self
        pairs = zip(self.groups, optimizers, strict=False)
        groups = tuple(replace(group, optimizer=each) for group, each in pairs)
        return replace(self, optimizer=optimizers[0], groups=groups)

    def slots(self, parameter: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """What is kept for one parameter beside its gradient: slot to shape.

        Parameters
        ----------
        parameter
            Its name.
        shape
            Its shape.
        """
        found = slots(self.kind, self._settings(self._of(parameter)), shape)
        return found | ({AVERAGE: shape} if self.average is not None else {})

    def dtype(self, parameter: str, slot: str, dtype: str) -> str:
        """The type of what a slot keeps for a parameter of this type.

        Parameters
        ----------
        parameter
            Its name.
        slot
            Its name.
        dtype
            Of the parameter.
        """
        return slot_dtype(slot, self._settings(self._of(parameter)), dtype)

    @property
    def halves(self) -> bool:
        """Whether moments are in bfloat16."""
        return any(optimizer.settings.get(HALVES) for optimizer in self.optimizers)

    @property
    def needs_new_agents(self) -> bool:
        """Whether agents before protocol 1.9 cannot do it."""
        additions = self.groups, self.clip_norm, self.clip_value, self.average, self.rated
        return any(each not in (None, ()) for each in additions) or not (
            self.optimizer.settings.keys() <= OLDER.get(self.kind, set())
        )

    # --- what devices are told --------------------------------------------------------------------

    def of_stages(
        self, stages: Sequence[Iterable[str]], order: Sequence[str], *, scaled: bool = False
    ) -> StepUpdate:
        """What the steps of stages are told.

        Parameters
        ----------
        stages
            Per stage, the parameters that it trains, as its gradients come.
        order
            All parameters, as norms of their gradients are looked at.
        scaled
            The loss is multiplied by a factor that devices change.
        """
        names = [tuple(stage) for stage in stages]
        limit = None
        if self.clip_norm is not None or scaled:
            limit = NormLimit(
                max_norm=ANY_NORM if self.clip_norm is None else self.clip_norm,
                order=inf if self.clip_norm is None else self.norm_order,
                parameters=tuple(names),
                sequence=tuple(order),
            )
        more = {"growth_steps": GROWTH_STEPS} if scaled else {}
        return StepUpdate(
            attributes=tuple(self._attributes(stage) | more for stage in names),
            limit=limit,
            n_rates=max(1, len(self.groups)) * len(self.rated),
            scaled=scaled,
        )

    def _attributes(self, parameters: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {"optimizer": self.optimizer.to_json()}
        if self.groups or self.rated:
            own = set(parameters)
            members = [[n for n in group.parameters if n in own] for group in self.groups]
            found["optimizer"] = {"name": self.kind}
            found["groups"] = [
                [names, _carried(self._settings(optimizer))]
                for names, optimizer in zip(
                    members or [[*parameters]], self.optimizers, strict=True
                )
            ]
        if self.rated:
            found["rated"] = [*self.rated]
        if self.clip_value is not None:
            found["clip_value"] = self.clip_value
        if self.average is not None:
            found["average"] = self.average
        return found

    def rates(self, optimizers: Sequence[Optimizer]) -> list[list[float]]:
        """The settings of a step that are rated: a row for each group.

        Parameters
        ----------
        optimizers
            One for each group, with the settings of that step.
        """
        settings = [self._settings(optimizer) for optimizer in optimizers]
        return [[float(row[name] or 0.0) for name in self.rated] for row in settings]

    # --- as a text --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """All beside the optimizer, as plain JSON data."""
        return {
            "groups": [[[*g.parameters], g.optimizer.to_json()] for g in self.groups],
            "clip_norm": self.clip_norm,
            "norm_order": "inf" if self.norm_order == inf else self.norm_order,
            "clip_value": self.clip_value,
            "average": self.average,
            "rated": [*self.rated],
        }


PLAIN = Update(optimizer=AdamW())


def read_update(optimizer: Any, document: Mapping[str, Any]) -> Update:
    """The update of a saved run: the inverse of `to_json`.

    Parameters
    ----------
    optimizer
        As `Optimizer.to_json` gives it.
    document
        As `Update.to_json`; empty in files of older versions.

    Raises
    ------
    UserError
        It does not hold.
    """
    groups = document.get("groups", [])
    order = document.get("norm_order", 2.0)
    found = Update(
        optimizer=read_optimizer(optimizer),
        groups=tuple(
            ParameterGroup(parameters=tuple(map(str, names)), optimizer=read_optimizer(settings))
            for names, settings in groups
        ),
        clip_norm=document.get("clip_norm"),
        norm_order=inf if order == "inf" else float(order),
        clip_value=document.get("clip_value"),
        average=document.get("average"),
    )
    return replace(found, rated=_rated(document.get("rated", []), found.kind))


def _rated(names: Any, kind: str) -> tuple[str, ...]:
    """The settings that came with each step of a saved run; one may stand alone."""
    found = [names] if isinstance(names, str) else names
    known = KINDS[kind].settings
    if not isinstance(found, list) or not all(isinstance(n, str) and n in known for n in found):
        raise UserError(f"rates of {kind} are a list of its settings, got {names!r:.60}.")
    return tuple(found)


def carried(old: Update | None, new: Update | None) -> frozenset[str]:
    """The slots that go over from one to the other: all that its optimizer keeps or nothing, as one
    without the other is of no use to it; and the average of the weights, where both have one.

    Parameters
    ----------
    old, new
        None: of a compiled plan that does not train.
    """
    if old is None or new is None:
        return frozenset()
    found = frozenset({AVERAGE} if None not in (old.average, new.average) else ())
    return found | (frozenset(KINDS[old.kind].slots) if keep_alike(old, new) else frozenset())


def keep_alike(one: Update, other: Update) -> bool:
    """Whether two keep the same state for every parameter, but for averages."""
    names = {n for update in (one, other) for g in update.groups for n in g.parameters} | {""}
    bare = [replace(update, average=None) for update in (one, other)]
    return one.kind == other.kind and all(
        bare[0].slots(name, (1,)) == bare[1].slots(name, (1,)) for name in names
    )


def is_retyped(old: Update | None, new: Update | None) -> bool:
    """Whether one keeps its moments in bfloat16 and the other does not.

    Parameters
    ----------
    old, new
        None: of a compiled plan that does not train.
    """
    return old is not None and new is not None and old.halves != new.halves


def is_average(state: str) -> bool:
    """Whether this names a moving average of weights.

    >>> is_average("average:fc.weight"), is_average("exp_avg:fc.weight")
    (True, False)
    """
    return state.startswith(f"{AVERAGE}:")


def with_rates(update: Update, changed: Iterable[str]) -> Update:
    """The same, with these settings coming with each step.

    Parameters
    ----------
    update
        As it is.
    changed
        Names of settings, as programs carry them.
    """
    return replace(update, rated=tuple(sorted({*update.rated, *changed})))


def changed_settings(one: Sequence[Optimizer], other: Sequence[Optimizer]) -> set[str]:
    """The settings in which two rows of optimizers of one class differ.

    Parameters
    ----------
    one, other
        One for each group.
    """
    return {
        name
        for a, b in zip(one, other, strict=True)
        for name in {**a.settings, **b.settings}
        if a.settings.get(name) != b.settings.get(name)
    }


def _carried(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Settings as programs carry them: None is left out."""
    return {name: value for name, value in settings.items() if value is not None}


def _number(name: str, given: Any, low: float, high: float) -> float:
    number = number_of(given)
    if number is None or not low <= number <= high:
        bound = f"from {low} to {high:g}" if isfinite(high) else f"of {low} or more"
        raise UserError(f"{name} is a number {bound}, got {given!r:.60}.")
    return number
