"""What happens in a lab and when: links slow down, lose or fill up.

Devices crash, freeze, leave and come. Pure.

A script is a TOML file of `[[events]]`, or records. Times and rates are the home's own; a lab that
is slower by a time scale stretches them as it does everything.

    [[events]]
    at_s = 2.0
    do = "bandwidth"
    medium = "air"
    rate = "10 Mbit/s"
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from potluck.documents import file_path, read_text, read_toml
from potluck.errors import FileError, UserError
from potluck.units import parse_rate

MOST_S = 1e9  # thirty years


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEvent:
    """Something at `at_s` after the start of the script."""

    at_s: float

    def __str__(self) -> str:
        """As people say it: `flow at 2 s (source one, target two, lasts_s 5)`."""
        more = ", ".join(
            f"{field.name} {getattr(self, field.name)}"
            for field in fields(self)
            if field.name != "at_s"
        )
        return f"{type(self).__name__.lower()} at {self.at_s:g} s ({more})"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not (
                isinstance(value, int | float) and 0 <= value <= MOST_S
            ):
                raise UserError(
                    f"script: {field.name} must be 0 to {MOST_S:g}, got {str(value)[:80]!r}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth(ScenarioEvent):
    """From now on `medium` carries `rate`: bytes per second, or text such as "10 Mbit/s"."""

    medium: str
    rate: float | str

    def __post_init__(self) -> None:
        ScenarioEvent.__post_init__(self)
        if not 0 < parse_rate(self.rate) < inf:
            raise UserError(f"script: rate must be above zero, got {self.rate!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(ScenarioEvent):
    """From now on `medium` loses this part of its packets."""

    medium: str
    loss_frac: float

    def __post_init__(self) -> None:
        ScenarioEvent.__post_init__(self)
        if not isinstance(self.loss_frac, int | float) or not 0 <= self.loss_frac < 1:
            raise UserError(
                f"script: loss_frac must be 0 or more and below 1, got {self.loss_frac!r}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(ScenarioEvent):
    """Somebody else's bytes go from `source` to `target`, as many as get through, for `lasts_s`."""

    source: str
    target: str
    lasts_s: float

    def __post_init__(self) -> None:
        ScenarioEvent.__post_init__(self)
        if self.source == self.target:
            raise UserError(
                f"script: source and target must be two devices, got {self.source!r} twice."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(ScenarioEvent):
    """Something else takes this part of the device's processor for `lasts_s`."""

    device: str
    busy_frac: float
    lasts_s: float

    def __post_init__(self) -> None:
        ScenarioEvent.__post_init__(self)
        if not isinstance(self.busy_frac, int | float) or not 0 < self.busy_frac <= 0.99:
            raise UserError(
                f"script: busy_frac must be above 0 and at most 0.99, got {self.busy_frac!r}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(ScenarioEvent):
    """The device's agent is killed, without a word."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(ScenarioEvent):
    """The device stands still for `lasts_s`, agent and worker."""

    device: str
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(ScenarioEvent):
    """The device's agent ends in good order."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(ScenarioEvent):
    """A device that left or crashed is there again, with its key and at its address."""

    device: str


KINDS: dict[str, type[ScenarioEvent]] = {
    kind.__name__.lower(): kind
    for kind in (Bandwidth, Loss, Flow, Load, Crash, Freeze, Leave, Join)
}
Script = str | Path | Iterable[ScenarioEvent]


def read(script: Script) -> tuple[ScenarioEvent, ...]:
    """The events of a file, or the given ones, in order of time.

    Raises
    ------
    FileError
        A file that cannot be read, a field that is missing or unknown.
    """
    if isinstance(script, str | bytes | Path) or not isinstance(script, Iterable):
        return _in_order(_from_file(file_path(script)))
    return _in_order(script)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioContext:
    """Who and what is there when a script begins: `emulated` devices can be loaded, `absent` ones
    join or stay away.
    """

    devices: Sequence[str]
    media: Sequence[str] = ()
    emulated: Collection[str] = ()
    absent: Collection[str] = ()


def check(script: Iterable[ScenarioEvent], context: ScenarioContext) -> None:
    """UserError at the first event, in order of time, that cannot happen there."""
    absent = dict.fromkeys(context.absent, "when the script begins")
    for item in script:
        for field in fields(item):
            if field.name in ("medium", "device", "source", "target"):
                _check_name(item, field.name, context)
        match item:
            case Flow() if not context.media:
                raise _refused(item, "this lab has no links that could be filled", _LINKS)
            case Load() if item.device not in context.emulated:
                raise _refused(
                    item,
                    f"{item.device} is as fast as this machine",
                    "Give its spec a slowdown above 1.",
                )
            case Join():
                if item.device not in absent:
                    raise _refused(
                        item,
                        f"{item.device} is there already",
                        "It joins after a crash or a leave.",
                    )
                del absent[item.device]
            case Crash() | Leave() | Freeze():
                if item.device in absent:
                    raise _refused(
                        item, f"{item.device} is gone {absent[item.device]}", "Let it join before."
                    )
                if not isinstance(item, Freeze):
                    absent[item.device] = (
                        f"since its {type(item).__name__.lower()} at {item.at_s:g} s"
                    )


_LINKS = "Links of homes of the library, or of TOML files, can change."


def _check_name(item: ScenarioEvent, what: str, context: ScenarioContext) -> None:
    kind, known = ("medium", context.media) if what == "medium" else ("device", context.devices)
    if (name := getattr(item, what)) not in known:
        raise _refused(
            item,
            f"there is no {kind} {name!r} in this lab",
            f"It has {', '.join(known)}." if known else _LINKS,
        )


def _refused(item: ScenarioEvent, why: str, next_step: str) -> UserError:
    return UserError(f"script: {item}: {why}.", next_step=next_step)


def slowed(item: ScenarioEvent, time_scale: float) -> ScenarioEvent:
    """The event in a lab that is so many times slower than the home."""
    times = {
        field.name: getattr(item, field.name) * time_scale
        for field in fields(item)
        if field.name.endswith("_s")
    }
    if isinstance(item, Bandwidth):
        return replace(item, rate=parse_rate(item.rate) / time_scale, **times)
    return replace(item, **times)


def _in_order(script: Iterable[ScenarioEvent]) -> tuple[ScenarioEvent, ...]:
    return tuple(sorted(script, key=lambda item: item.at_s))


def _from_file(path: Path) -> list[ScenarioEvent]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise FileError(f"{path} cannot be used as a script: {why}.", file=str(path)) from error
    document = read_toml(text, str(path))
    rows = document.pop("events", [])
    if document or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        but = f", got {', '.join(document)}" if document else ""
        raise FileError(f"{path}: expected [[events]] tables{but}.", file=str(path))
    return [_event(row, f"{path}: event {number}") for number, row in enumerate(rows, 1)]


def _event(row: dict[str, Any], where: str) -> ScenarioEvent:
    kind = KINDS.get(str(row.pop("do", "")))
    if kind is None:
        raise FileError(f"{where}: `do` must be one of {', '.join(KINDS)}.")
    wanted = {field.name: field for field in fields(kind)}
    unknown = sorted(row.keys() - wanted.keys())
    missing = [
        name for name, field in wanted.items() if field.default is MISSING and name not in row
    ]
    if unknown or missing:
        wrong = f"there is no {unknown[0]!r}" if unknown else f"{missing[0]!r} is missing"
        raise FileError(f"{where}: {wrong}; {kind.__name__.lower()} has {', '.join(wanted)}.")
    try:
        return kind(**row)
    except (UserError, TypeError) as error:
        raise FileError(f"{where}: {error}") from error
