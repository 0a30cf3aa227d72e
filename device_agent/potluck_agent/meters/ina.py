"""Jetsons: INA3221 and INA238 power monitors on the board, through three layouts of sysfs.

- driver `ina3221x` (old kernels): iio:device*/rail_name_N, in_power{N}_input in mW
- driver `ina3221`: hwmon*/in{N}_label, in{N}_input in mV, curr{N}_input in mA
- driver `ina238` (Thor): hwmon*/power1_input in uW

Where one rail is the whole board's input only that one counts; else all rails are added up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from potluck_agent.meters.records import FoundMeters, MeterFinding, PowerGauge, number, text

# how the rail of the whole board is called: VDD_IN, POM_5V_IN, 5V_SYSTEM
TOTAL_RAIL = ("_in", "system", "total")
STEP_V = 40e-6  # INA3221: steps of the voltage over the shunt
SHUNT_OHM = 5e-3  # what Jetson boards have, where the driver does not tell
UNKNOWN_RESOLUTION_W = 0.05  # about the above at 5 V: 40 uV / 5 mOhm x 5 V = 40 mW


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One monitored supply."""

    name: str
    power_w: Callable[[], float]
    resolution_w: float


def find(root: Path) -> FoundMeters:
    """The rail of the whole board, or all rails."""
    drivers = root / "sys/bus/i2c/drivers"
    rails = [*_old(drivers), *_hwmon(drivers), *_ina238(drivers)]
    total = [rail for rail in rails if any(mark in rail.name.lower() for mark in TOTAL_RAIL)]
    chosen = total[:1] or rails
    try:
        for rail in chosen:
            rail.power_w()
    except OSError as error:
        return FoundMeters(
            finding=MeterFinding(
                meter="ina", present=False, reason=f"the monitor does not answer: {error}"
            )
        )
    if not chosen:
        reason = "no INA3221 or INA238 power monitor on this board"
        return FoundMeters(finding=MeterFinding(meter="ina", present=False, reason=reason))
    names = ", ".join(rail.name for rail in chosen)
    reason = f"measures {names}" + ("" if total else " (no rail holds them all)")
    gauges = tuple(
        PowerGauge(f"ina {rail.name}", rail.resolution_w, rail.power_w) for rail in chosen
    )
    return FoundMeters(
        finding=MeterFinding(meter="ina", present=True, reason=reason), gauges=gauges
    )


def _old(drivers: Path) -> Iterator[Rail]:
    for label in sorted(drivers.glob("ina3221x/*/iio:device*/rail_name_*")):
        power = label.with_name(f"in_power{label.name.removeprefix('rail_name_')}_input")
        if power.exists():
            yield Rail(
                name=text(label),
                power_w=partial(_scaled, power, 1e-3),
                resolution_w=UNKNOWN_RESOLUTION_W,
            )


def _hwmon(drivers: Path) -> Iterator[Rail]:
    for label in sorted(drivers.glob("ina3221/*/hwmon/**/in*_label")):
        index = label.name.removeprefix("in").removesuffix("_label")
        volts, amperes = label.with_name(f"in{index}_input"), label.with_name(f"curr{index}_input")
        if volts.exists() and amperes.exists():
            yield Rail(
                name=text(label),
                power_w=partial(_product, volts, amperes),
                resolution_w=_resolution_w(volts, label.with_name(f"shunt{index}_resistor")),
            )


def _ina238(drivers: Path) -> Iterator[Rail]:
    for power in sorted(drivers.glob("ina238/*/hwmon/**/power1_input")):
        name = (
            text(power.with_name("label"))
            or text(power.with_name("in1_label"))
            or power.parent.name
        )
        yield Rail(
            name=name, power_w=partial(_scaled, power, 1e-6), resolution_w=UNKNOWN_RESOLUTION_W
        )


def _resolution_w(volts: Path, shunt: Path) -> float:
    """One step of the current times the voltage; the shunt's resistance is told in microohm."""
    try:
        ohm = number(shunt) * 1e-6 or SHUNT_OHM
    except OSError:
        ohm = SHUNT_OHM
    try:
        return STEP_V / ohm * number(volts) * 1e-3
    except OSError:
        return UNKNOWN_RESOLUTION_W


def _scaled(path: Path, factor: float) -> float:
    return number(path) * factor


def _product(millivolts: Path, milliamperes: Path) -> float:
    return number(millivolts) * number(milliamperes) * 1e-6
