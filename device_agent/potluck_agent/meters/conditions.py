"""What the owner's rules look at: mains, battery and temperature now, and the time of day."""

import sys
import time
from contextlib import suppress
from pathlib import Path

from potluck_agent.meters.battery import charge_frac, is_discharging
from potluck_agent.meters.records import number, text
from potluck_agent.owner_rules import DeviceConditions

# what sensors tell that are broken or asleep lies outside
SENSIBLE_C = (1.0, 150.0)


def read(root: Path) -> DeviceConditions:
    """How this device is now.

    Parameters
    ----------
    root
        Of the file system where the kernel tells; other systems than Linux are asked themselves.
    """
    if hasattr(time, "tzset"):  # the zone may have changed: a laptop travels
        time.tzset()
    now = time.localtime()
    on_mains, battery_frac = _power(root)
    return DeviceConditions(
        on_mains=on_mains,
        battery_frac=battery_frac,
        temp_c=temperature_c(root),
        minute=now.tm_hour * 60 + now.tm_min,
    )


def temperature_c(root: Path) -> float | None:
    """The hottest that any sensor of the system tells; None where there is none."""
    files = [
        *(root / "sys/class/thermal").glob("thermal_zone*/temp"),
        *(root / "sys/class/hwmon").glob("hwmon*/temp*_input"),
    ]
    found = []
    for path in files:
        with suppress(OSError):
            found.append(number(path) / 1000)
    coldest, hottest = SENSIBLE_C
    return max((celsius for celsius in found if coldest <= celsius <= hottest), default=None)


def _power(root: Path) -> tuple[bool | None, float | None]:
    """Whether it is on mains, and its charge. Without a battery it is."""
    if not sys.platform.startswith("linux"):
        import psutil

        battery = psutil.sensors_battery()
        return (True, None) if battery is None else (battery.power_plugged, battery.percent / 100)
    online = [
        path
        for path in (root / "sys/class/power_supply").glob("*")
        if text(path / "type") in ("Mains", "USB", "Wireless") and text(path / "online") == "1"
    ]
    return bool(online) or not is_discharging(root), charge_frac(root)
