"""Raspberry Pi 5: the power chip's currents and voltages, by `vcgencmd pmic_read_adc`.

Earlier models have no meter.

The rails behind the power chip are added up; its own losses and USB devices are not seen. Each
reading starts a process (some 10 ms).
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from potluck_agent.meters.records import FoundMeters, MeterFinding, PowerGauge, text

# a guess: the currents come in steps of about 1 mA on a dozen rails of 0.8 to 5 V
RESOLUTION_W = 0.01
TIMEOUT_S = 2.0
_LINE = re.compile(r"^\s*(\w+)_([AV]) (?:current|volt)\(\d+\)=([0-9.]+)[AV]\s*$", re.MULTILINE)

Runner = Callable[[], str]


def find(root: Path, run: Runner | None = None) -> FoundMeters:
    """The sum of all rails of the power chip. `run` gives the output of the command."""
    model = text(root / "proc/device-tree/model")
    if not model.startswith("Raspberry Pi"):
        return FoundMeters(
            finding=MeterFinding(meter="pi5", present=False, reason="this is no Raspberry Pi")
        )
    if not model.startswith("Raspberry Pi 5"):
        return FoundMeters(
            finding=MeterFinding(meter="pi5", present=False, reason=f"a {model} has no power meter")
        )
    run = run or _vcgencmd
    try:
        power_w(run())
    except OSError as error:
        remedy = (
            "install vcgencmd (package libraspberrypi-bin or raspi-utils), add the agent's "
            "user to the group video"
        )
        return FoundMeters(
            finding=MeterFinding(meter="pi5", present=False, reason=str(error), remedy=remedy)
        )
    gauge = PowerGauge("pi5 pmic", RESOLUTION_W, lambda: power_w(run()))
    return FoundMeters(
        finding=MeterFinding(meter="pi5", present=True, reason="measures the power chip's rails"),
        gauges=(gauge,),
    )


def power_w(output: str) -> float:
    """Watts of all rails that have both a current and a voltage.

    >>> power_w("3V3_SYS_A current(1)=0.50A\\n 3V3_SYS_V volt(9)=3.30V\\n EXT5V_V volt(24)=5.1V")
    1.65
    """
    try:
        values = {(rail, kind): float(value) for rail, kind, value in _LINE.findall(output)}
    except ValueError as error:
        raise OSError(f"vcgencmd pmic_read_adc told no numbers: {error}") from error
    rails = [rail for rail, kind in values if kind == "A" and (rail, "V") in values]
    if not rails:
        raise OSError(f"vcgencmd pmic_read_adc told no rails: {output[:80]!r}")
    return sum(values[rail, "A"] * values[rail, "V"] for rail in rails)


def _vcgencmd() -> str:
    command = shutil.which("vcgencmd")
    if command is None:
        raise FileNotFoundError("vcgencmd is not installed")
    try:
        done = subprocess.run(
            [command, "pmic_read_adc"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"vcgencmd failed: {error}") from error
    return done.stdout
