"""Laptops and phones on battery: what the battery gives is what the whole device takes.

Plugged in, the battery's current says nothing about the device, so it then does not answer.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path

from potluck_agent.meters.records import FoundMeters, MeterFinding, PowerGauge, number, text

RESOLUTION_W = 0.1  # a guess: fuel gauges tell milliwatts but average over seconds


class PluggedIn(OSError):
    """The battery does not drive the device now."""


def find(root: Path) -> FoundMeters:
    """All batteries together (some laptops have two and drain one after the other)."""
    batteries = _batteries(root)
    if not batteries:
        return FoundMeters(
            finding=MeterFinding(
                meter="battery", present=False, reason="this device has no battery"
            )
        )
    try:
        _power_w(batteries)
    except PluggedIn as error:
        remedy = "unplug the charger while you profile"
        return FoundMeters(
            finding=MeterFinding(meter="battery", present=False, reason=str(error), remedy=remedy)
        )
    except OSError as error:
        return FoundMeters(
            finding=MeterFinding(
                meter="battery", present=False, reason=f"the battery does not tell: {error}"
            )
        )
    reason = f"measures what {' and '.join(path.name for path in batteries)} give"
    gauge = PowerGauge("battery", RESOLUTION_W, partial(_power_w, batteries))
    return FoundMeters(
        finding=MeterFinding(meter="battery", present=True, reason=reason), gauges=(gauge,)
    )


def charge_frac(root: Path) -> float | None:
    """How full the batteries are, 0 to 1; None without one, or where it does not tell."""
    found = []
    for path in _batteries(root):
        with suppress(OSError):
            found.append(min(1.0, max(0.0, number(path / "capacity") / 100)))
    return sum(found) / len(found) if found else None


def is_discharging(root: Path) -> bool:
    """Whether a battery drives this device now."""
    return any(text(path / "status") == "Discharging" for path in _batteries(root))


def _batteries(root: Path) -> list[Path]:
    """Those that drive this device, not those of a mouse."""
    return [
        path
        for path in sorted((root / "sys/class/power_supply").glob("*"))
        if text(path / "type") == "Battery" and text(path / "scope") != "Device"
    ]


def _power_w(batteries: list[Path]) -> float:
    discharging = [path for path in batteries if text(path / "status") == "Discharging"]
    if not discharging:
        raise PluggedIn(
            "the charger is plugged in, so the battery does not show what the device takes"
        )
    return sum(_one_w(path) for path in discharging)


def _one_w(path: Path) -> float:
    """`power_now` in uW, or `current_now` in uA times `voltage_now` in uV.

    Some drivers give currents a sign.
    """
    if (path / "power_now").exists():
        return abs(number(path / "power_now")) * 1e-6
    return abs(number(path / "current_now")) * number(path / "voltage_now") * 1e-12
