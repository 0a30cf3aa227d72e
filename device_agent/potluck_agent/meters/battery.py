"""Laptops and phones on battery: what the battery gives is what the whole device takes.

Plugged in, the battery's current says nothing about the device, so it then does not answer.
"""

from functools import partial
from pathlib import Path

from potluck_agent.meters.records import Finding, Found, PowerGauge, number, text

RESOLUTION_W = 0.1  # a guess: fuel gauges tell milliwatts but average over seconds


class PluggedIn(OSError):
    """The battery does not drive the device now."""


def find(root: Path) -> Found:
    """All batteries together (some laptops have two and drain one after the other)."""
    supplies = sorted((root / "sys/class/power_supply").glob("*"))
    batteries = [
        path
        for path in supplies
        if text(path / "type") == "Battery" and text(path / "scope") != "Device"
    ]
    if not batteries:
        return Found(
            finding=Finding(meter="battery", present=False, reason="this device has no battery")
        )
    try:
        _power_w(batteries)
    except PluggedIn as error:
        remedy = "unplug the charger while you profile"
        return Found(
            finding=Finding(meter="battery", present=False, reason=str(error), remedy=remedy)
        )
    except OSError as error:
        return Found(
            finding=Finding(
                meter="battery", present=False, reason=f"the battery does not tell: {error}"
            )
        )
    reason = f"measures what {' and '.join(path.name for path in batteries)} give"
    gauge = PowerGauge("battery", RESOLUTION_W, partial(_power_w, batteries))
    return Found(finding=Finding(meter="battery", present=True, reason=reason), gauges=(gauge,))


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
