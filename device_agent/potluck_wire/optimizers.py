"""The optimizers that a program may name: their settings, and what each keeps for a parameter.

All but Lion are torch's own. What an optimizer keeps is called `SLOT:PARAMETER`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck_wire.errors import WireCode, WireError

Setting = float | bool | None
STEP = "step"  # the slot that counts steps
AVERAGE = "average"  # the slot of a moving average of the weights themselves
# a state of two whole numbers: the gradient of the loss is multiplied by 2 to the first one; the
# second counts steps in a row whose gradients were finite
LOSS_SCALE = "loss_scale"
MAX_LOSS_SCALE = 127  # the largest power of 2 that float32 holds
SCALARS = frozenset({STEP, "mu_product"})  # one number of float32 for a parameter
HALVES = "bfloat16_moments"  # the setting by which moments are rounded to bfloat16 after each step
HALF = "bfloat16"
HALVED = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
# A moment that loses less of itself in a step than bfloat16 can show would never become smaller.
MAX_HALVED_BETA = 1 - 2**-8


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """One optimizer: the class of `torch.optim` it is, its settings with torch's defaults, and its
    slots; `when`: slots that are there only where that setting is above zero.

    `fractions` are below 1. `factored`: it looks at a whole matrix; all others go by elements.
    """

    torch: str
    settings: Mapping[str, Setting]
    slots: tuple[str, ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    fractions: frozenset[str] = frozenset()
    negative: frozenset[str] = frozenset()
    factored: bool = False


_BETAS = {"beta1": 0.9, "beta2": 0.999}
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_FRACTIONS = frozenset(_BETAS)
_ADAM = {**_BETAS, "eps": 1e-8, "weight_decay": 0.0}

KINDS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        torch="SGD", settings={"lr": 1e-3, "weight_decay": 0.0, "maximize": False}
    ),
    "momentum": OptimizerKind(
        torch="SGD",
        settings={
            "lr": 1e-3,
            "momentum": 0.9,
            "weight_decay": 0.0,
            "nesterov": False,
            "maximize": False,
        },
        slots=("momentum_buffer",),
        when={"momentum_buffer": "momentum"},
    ),
    "adamw": OptimizerKind(
        torch="AdamW",
        settings={
            "lr": 1e-3,
            **_ADAM,
            "weight_decay": 0.01,
            "amsgrad": False,
            "maximize": False,
            HALVES: False,
        },
        slots=(*_MOMENTS, "max_exp_avg_sq"),
        when={"max_exp_avg_sq": "amsgrad"},
        fractions=_FRACTIONS,
    ),
    "adam": OptimizerKind(
        torch="Adam",
        settings={"lr": 1e-3, **_ADAM, "amsgrad": False, "maximize": False, HALVES: False},
        slots=(*_MOMENTS, "max_exp_avg_sq"),
        when={"max_exp_avg_sq": "amsgrad"},
        fractions=_FRACTIONS,
    ),
    "nadam": OptimizerKind(
        torch="NAdam",
        settings={
            "lr": 2e-3,
            **_ADAM,
            "momentum_decay": 4e-3,
            "decoupled_weight_decay": False,
            "maximize": False,
        },
        slots=("step", "mu_product", "exp_avg", "exp_avg_sq"),
        fractions=_FRACTIONS,
    ),
    "radam": OptimizerKind(
        torch="RAdam",
        settings={"lr": 1e-3, **_ADAM, "decoupled_weight_decay": False, "maximize": False},
        slots=_MOMENTS,
        fractions=_FRACTIONS,
    ),
    "adamax": OptimizerKind(
        torch="Adamax",
        settings={"lr": 2e-3, **_ADAM, "maximize": False},
        slots=("step", "exp_avg", "exp_inf"),
        fractions=_FRACTIONS,
    ),
    "adagrad": OptimizerKind(
        torch="Adagrad",
        settings={
            "lr": 1e-2,
            "lr_decay": 0.0,
            "weight_decay": 0.0,
            "eps": 1e-10,
            "maximize": False,
        },
        slots=("step", "sum"),
    ),
    "adadelta": OptimizerKind(
        torch="Adadelta",
        settings={"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0, "maximize": False},
        slots=("step", "square_avg", "acc_delta"),
    ),
    "rmsprop": OptimizerKind(
        torch="RMSprop",
        settings={
            "lr": 1e-2,
            "alpha": 0.99,
            "eps": 1e-8,
            "weight_decay": 0.0,
            "momentum": 0.0,
            "centered": False,
            "maximize": False,
        },
        slots=("step", "square_avg", "momentum_buffer", "grad_avg"),
        when={"momentum_buffer": "momentum", "grad_avg": "centered"},
    ),
    "adafactor": OptimizerKind(
        torch="Adafactor",
        settings={
            "lr": 1e-2,
            "beta2_decay": -0.8,
            "eps1": None,
            "eps2": 1e-3,
            "d": 1.0,
            "weight_decay": 0.0,
            "maximize": False,
        },
        slots=("step", "row_var", "col_var", "variance"),
        negative=frozenset({"beta2_decay"}),
        factored=True,
    ),
    # Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2
    "lion": OptimizerKind(
        torch="",
        settings={"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
        slots=("exp_avg",),
        fractions=_FRACTIONS,
    ),
}
SLOTS = frozenset(slot for kind in KINDS.values() for slot in kind.slots) | {AVERAGE}
# what agents before 1.9 know of them
OLDER = {
    "sgd": {"lr", "weight_decay"},
    "momentum": {"lr", "momentum", "weight_decay", "nesterov"},
    "adamw": {"lr", "beta1", "beta2", "eps", "weight_decay"},
}


def check(options: Mapping[str, Any]) -> tuple[str, dict[str, Setting]]:
    """(name, all settings) of an optimizer as programs carry it: {"name", setting: value, ...}.

    Raises
    ------
    WireError
        With code `document`: there is none of that name, or a setting is not what it can be.
    """
    name = options.get("name")
    if not isinstance(name, str) or name not in KINDS:
        raise _wrong(f"there is no optimizer {name!r:.40}; there are {', '.join(sorted(KINDS))}")
    kind = KINDS[name]
    given = {key: value for key, value in options.items() if key != "name"}
    for key, value in given.items():
        if key not in kind.settings:
            raise _wrong(f"{name} has no setting {key!r:.40}")
        _check_setting(name, kind, key, value)
    settings = {**kind.settings, **given}
    if settings.get(HALVES):
        for key in kind.fractions:
            if (value := settings[key]) is not None and value > MAX_HALVED_BETA:
                raise _wrong(
                    f"{name}: with {HALVES} {key} is at most {MAX_HALVED_BETA:.4f}, got {value:g}"
                )
    return name, settings


def _check_setting(name: str, kind: OptimizerKind, key: str, value: Any) -> None:
    if isinstance(kind.settings[key], bool):
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise _wrong(f"{name}: {key} is true or false, got {value!r:.40}")
        return
    if value is None and kind.settings[key] is None:
        return
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(f"{name}: {key} must be a finite number, got {value!r:.40}")
    if key in kind.negative:
        if value > 0:
            raise _wrong(f"{name}: {key} must be zero or below, got {value!r:.40}")
    elif value < 0:
        raise _wrong(f"{name}: {key} must be a number that is not negative, got {value!r:.40}")
    if key in kind.fractions and value >= 1:
        raise _wrong(f"{name}: {key} must be below 1, got {value!r:.40}")


def slots(
    name: str, settings: Mapping[str, Setting], shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """The slots that an optimizer keeps for a parameter of this shape, with their shapes.

    Parameters
    ----------
    name
        Of the optimizer.
    settings
        All of them, as `check` gives them.
    shape
        Of the parameter.

    Returns
    -------
    dict[str, tuple[int, ...]]
        Slot to shape; their types: `slot_dtype`.
    """
    kind = KINDS[name]
    kept = [slot for slot in kind.slots if not (when := kind.when.get(slot)) or settings[when]]
    if kind.factored:
        kept = [slot for slot in kept if (slot == "variance") == (len(shape) < 2) or slot == STEP]
    return {slot: slot_shape(slot, shape) for slot in kept}


def slot_dtype(slot: str, settings: Mapping[str, Setting], dtype: str) -> str:
    """The type of a slot of a parameter of this type.

    >>> slot_dtype("step", {}, "float64"), slot_dtype("exp_avg", {HALVES: True}, "float32")
    ('float32', 'bfloat16')

    Parameters
    ----------
    slot
        Its name.
    settings
        Of the optimizer.
    dtype
        Of the parameter.
    """
    if slot in SCALARS:
        return "float32"
    return HALF if settings.get(HALVES) and slot in HALVED else dtype


def slot_shape(slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a slot of a parameter of this shape.

    >>> slot_shape("row_var", (3, 4)), slot_shape("col_var", (3, 4)), slot_shape("step", (3, 4))
    ((3, 1), (1, 4), ())
    """
    if slot in SCALARS:
        return ()
    if slot == "row_var":
        return (*shape[:-1], 1)
    if slot == "col_var":
        return (*shape[:-2], 1, *shape[-1:])
    return shape


def _wrong(text: str) -> WireError:
    return WireError(WireCode.DOCUMENT, text)
