"""A plan as text that a person can read, edit and post back (TOML)."""

import json
from typing import Any

from potluck.documents import read_toml
from potluck.errors import FileError, PlanError, UserError
from potluck.records import Plan, Stage

FORMAT = 1  # another one is refused; a person who writes a plan may leave it out
_FACTS = (
    "planner",
    "model",
    "home",
    "micro_batch",
    "n_micro_batches",
    "training",
    "latency_s",
    "energy_j",
    "energy_source",
    "seed",
    "gap_frac",
    "energy_gap_frac",
    "schedule",
)
LARGEST = 1e308  # of numbers that a float can be
MAX_SHOWN = 80  # characters of what somebody wrote
_KNOWN = {*_FACTS, "format", "n_layers", "stage", "peak_bytes", "device_energy_j", "unused"}
_STAGE = {"layers", "devices", "shares", "warm_up", "recompute", "micro_batch"}


def dumps(plan: Plan) -> str:
    """The plan as text; `loads` gives the same plan back."""
    lines = [
        "# A potluck plan. `layers` are half-open; `shares` are rows of each micro-batch, one "
        "per device."
    ]
    lines.append(f"format = {FORMAT}")
    for name in _FACTS:
        value = getattr(plan, name)
        if value not in (None, ""):
            lines.append(f"{name} = {_value(value)}")
    lines.append(f"n_layers = {plan.stages[-1].stop}")
    for stage in plan.stages:
        lines += ["", "[[stage]]", f"layers = {_value([stage.start, stage.stop])}"]
        lines += [f"devices = {_value(stage.devices)}", f"shares = {_value(stage.shares)}"]
        lines.append(f"warm_up = {stage.warm_up}")
        lines += ["recompute = true"] if stage.recompute else []
        own = stage.micro_batch
        lines += [f"micro_batch = {own}"] if own is not None else []
    tables = (
        ("peak_bytes", plan.peak_bytes),
        ("device_energy_j", plan.device_energy_j),
        ("unused", plan.unused),
    )
    for title, table in tables:
        if table:
            lines += [
                "",
                f"[{title}]",
                *(f"{_value(name)} = {_value(value)}" for name, value in table.items()),
            ]
    return "\n".join(lines) + "\n"


def loads(text: str, file: str = "") -> Plan:
    """Read a plan. `file` names it in errors.

    Raises
    ------
    PlanError
        Says what is wrong, and where.
    """
    try:
        return _plan(_table_of(text))
    except UserError as error:
        raise PlanError(f"{file}: {error}" if file else str(error)) from error


def _table_of(text: str) -> dict[str, Any]:
    try:
        return read_toml(text, "the text")
    except FileError as error:
        raise PlanError(f"this is not a plan: {error}") from error


def _plan(data: dict[str, Any]) -> Plan:
    if _get(data, "format", int, FORMAT) != FORMAT:
        raise PlanError(
            f"the plan is of format {data['format']}; this version reads {FORMAT}.",
            next_step="Plan anew.",
        )
    _no_others("the plan", data, _KNOWN)
    stages = data.get("stage")
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise PlanError("a plan needs at least one [[stage]].")
    plan = Plan(
        planner=_get(data, "planner", str, "") or "edited",
        model=_get(data, "model", str),
        stages=tuple(_stage(index, stage) for index, stage in enumerate(stages)),
        micro_batch=_get(data, "micro_batch", int),
        n_micro_batches=_get(data, "n_micro_batches", int, 1),
        training=_get(data, "training", bool, True),
        latency_s=_get(data, "latency_s", float, None),
        energy_j=_get(data, "energy_j", float, None),
        energy_source=_get(data, "energy_source", str, ""),
        seed=_get(data, "seed", int, None),
        gap_frac=_get(data, "gap_frac", float, None),
        energy_gap_frac=_get(data, "energy_gap_frac", float, None),
        home=_get(data, "home", str, ""),
        schedule=_get(data, "schedule", str, ""),
        peak_bytes=_table(data, "peak_bytes", int),
        device_energy_j=_table(data, "device_energy_j", float),
        unused=_table(data, "unused", str),
    )
    n_layers, stop = _get(data, "n_layers", int, plan.stages[-1].stop), plan.stages[-1].stop
    if n_layers != stop:
        raise PlanError(
            f"its stages cover {stop} layers, and the model that it was made for has {n_layers} "
            "(`n_layers`).",
            next_step=f"Have the last stage end at layer {n_layers}.",
        )
    return plan


def _stage(index: int, data: dict[str, Any]) -> Stage:
    where = f"stage {index}"
    _no_others(where, data, _STAGE)
    layers = _list(data, "layers", int, where)
    if len(layers) != 2:
        raise PlanError(f"{where}: `layers` must be [start, stop], got {layers}.")
    devices = _list(data, "devices", str, where)
    shares = _list(data, "shares", int, where)
    warm_up = _get(data, "warm_up", int, 1, where)
    return Stage(
        start=layers[0],
        stop=layers[1],
        devices=tuple(devices),
        shares=tuple(shares),
        warm_up=warm_up,
        recompute=_get(data, "recompute", bool, False, where),
        micro_batch=_get(data, "micro_batch", int, None, where),
    )


_REQUIRED = object()


def _get(
    data: dict[str, Any], name: str, kind: type, default: Any = _REQUIRED, where: str = "the plan"
) -> Any:
    value = data.get(name, default)
    if value is _REQUIRED:
        raise PlanError(f"{where}: `{name}` is missing.")
    if kind is float and type(value) is int and abs(value) < LARGEST:
        return float(value)
    if value is not default and type(value) is not kind:
        raise PlanError(f"{where}: `{name}` must be {_called(kind)}, got {_shown(value)}.")
    return value


def _list(data: dict[str, Any], name: str, kind: type, where: str) -> list[Any]:
    value = _get(data, name, list, where=where)
    if any(type(item) is not kind for item in value):
        raise PlanError(
            f"{where}: every entry of `{name}` must be {_called(kind)}, got {_shown(value)}."
        )
    return list(value)


def _table(data: dict[str, Any], name: str, kind: type) -> dict[str, Any]:
    table = _get(data, name, dict, {})
    return {key: _get(table, key, kind, where=name) for key in table}


def _no_others(where: str, data: dict[str, Any], known: set[str]) -> None:
    others = sorted(set(data) - known)
    if others:
        raise PlanError(
            f"{where}: nobody knows `{others[0]}`.", next_step=f"Known: {', '.join(sorted(known))}."
        )


def _called(kind: type) -> str:
    return {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        list: "a list",
        dict: "a table",
    }[kind]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


def _value(value: object) -> str:
    """A TOML value; JSON's text, numbers, booleans and lists of these are TOML too."""
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
