"""When the owner of a device lets it take part: rules, readings, and which rules these break. Pure.

A rule that is broken holds on until its reading is better by a margin, so that a device at the
limit does not come and go. What cannot be read now leaves a rule as it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BATTERY_MARGIN_FRAC = 0.05
TEMP_MARGIN_C = 5.0  # a processor cools by so much within a minute once it has nothing to do
DAY_MINUTES = 24 * 60

Broken = Mapping[str, str]  # rule -> why it is broken, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRules:
    """The owner's limits; by default none. `quiet_hours`: from, to, in minutes of the day."""

    only_on_mains: bool = False
    min_battery_frac: float | None = None
    max_temp_c: float | None = None
    quiet_hours: tuple[int, int] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Each rule for people."""
        texts = []
        if self.only_on_mains:
            texts.append("only on mains")
        if self.min_battery_frac is not None:
            texts.append(f"battery at {self.min_battery_frac:.0%} or more")
        if self.max_temp_c is not None:
            texts.append(f"at most {self.max_temp_c:g} °C")
        if self.quiet_hours is not None:
            texts.append(f"not from {' to '.join(map(clock, self.quiet_hours))}")
        return tuple(texts)


NO_RULES = OwnerRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConditions:
    """How the device is now; None: not known. `minute` of the day, by its own clock."""

    on_mains: bool | None = None
    battery_frac: float | None = None
    temp_c: float | None = None
    minute: int = 0


def broken(rules: OwnerRules, readings: DeviceConditions, before: Broken) -> dict[str, str]:
    """The rules that are broken now, each with its reason.

    Parameters
    ----------
    rules
        The owner's.
    readings
        Of now.
    before
        What this gave last; empty at first.
    """
    found = {
        "mains": _mains(rules, readings),
        "battery": _battery(rules, readings, was_broken="battery" in before),
        "temperature": _temperature(rules, readings, was_broken="temperature" in before),
        "quiet hours": _quiet(rules, readings),
    }
    reasons = {rule: before.get(rule, "") if why is None else why for rule, why in found.items()}
    return {rule: why for rule, why in reasons.items() if why}


def reason(found: Broken) -> str:
    """All that is broken as one text; empty: the device may take part."""
    return "; ".join(found.values())


# Each: why the rule is broken; empty: it is not; None: not known.


def _mains(rules: OwnerRules, readings: DeviceConditions) -> str | None:
    if not rules.only_on_mains or readings.on_mains:
        return ""
    return None if readings.on_mains is None else "it runs on its battery"


def _battery(rules: OwnerRules, readings: DeviceConditions, *, was_broken: bool) -> str | None:
    least, now = rules.min_battery_frac, readings.battery_frac
    if least is None or now is None:
        return "" if least is None else None
    back = min(1.0, least + BATTERY_MARGIN_FRAC)
    if now >= (back if was_broken else least):
        return ""
    return f"its battery is at {now:.0%}, and its owner wants {least:.0%}; back at {back:.0%}"


def _temperature(rules: OwnerRules, readings: DeviceConditions, *, was_broken: bool) -> str | None:
    limit_c, now = rules.max_temp_c, readings.temp_c
    if limit_c is None or now is None:
        return "" if limit_c is None else None
    back = limit_c - TEMP_MARGIN_C
    if now <= (back if was_broken else limit_c):
        return ""
    return f"it is at {now:.0f} °C, and its owner allows {limit_c:g} °C; back at {back:g} °C"


def _quiet(rules: OwnerRules, readings: DeviceConditions) -> str:
    if rules.quiet_hours is None:
        return ""
    start, stop = rules.quiet_hours
    if (readings.minute - start) % DAY_MINUTES >= (stop - start) % DAY_MINUTES:
        return ""
    return f"its owner wants it quiet until {clock(stop)}"


def clock(minute: int) -> str:
    """A minute of the day as people write it.

    >>> clock(22 * 60), clock(7 * 60 + 5)
    ('22:00', '07:05')
    """
    return f"{minute // 60:02}:{minute % 60:02}"
