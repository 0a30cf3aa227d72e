"""Intel and AMD processors: RAPL energy counters of the packages and of the memory, in
/sys/class/powercap.

Only root may read them since Linux 5.10 (CVE-2020-8694: they leak what other programs compute).
"""

from functools import partial
from pathlib import Path

from potluck_agent.meters.records import CounterGauge, FoundMeters, MeterFinding, number, text

# Counted in steps of 61 uJ (Intel's usual unit), which is 1 mW at 16 readings a second.
RESOLUTION_W = 0.001
REMEDY = (
    'add the udev rule  SUBSYSTEM=="powercap", ACTION=="add", RUN+="/bin/chgrp potluck '
    '/sys%p/energy_uj", '
    'RUN+="/bin/chmod g+r /sys%p/energy_uj"  to /etc/udev/rules.d/99-potluck.rules, put the '
    "agent's user into the "
    "group potluck, and restart"
)


def find(root: Path) -> FoundMeters:
    """The counters of every package and its memory; they do not overlap."""
    zones = [
        zone
        for zone in sorted((root / "sys/class/powercap").glob("intel-rapl*:*"))
        if _counts(zone)
    ]
    if not zones:
        return FoundMeters(
            finding=MeterFinding(
                meter="rapl", present=False, reason="this processor shows no energy counters"
            )
        )
    try:
        gauges = tuple(_gauge(zone) for zone in zones)
    except PermissionError as error:
        reason = f"{error.filename or 'energy_uj'} may be read by root only"
        return FoundMeters(
            finding=MeterFinding(meter="rapl", present=False, reason=reason, remedy=REMEDY)
        )
    except OSError as error:
        return FoundMeters(
            finding=MeterFinding(
                meter="rapl", present=False, reason=f"the counters do not answer: {error}"
            )
        )
    names = ", ".join(text(zone / "name") for zone in zones)
    return FoundMeters(
        finding=MeterFinding(meter="rapl", present=True, reason=f"counts {names}"), gauges=gauges
    )


def _counts(zone: Path) -> bool:
    """Packages hold cores and graphics, but not memory.

    `psys` holds them all and would count them twice.
    """
    return text(zone / "name").startswith(("package-", "dram")) and (zone / "energy_uj").exists()


def _gauge(zone: Path) -> CounterGauge:
    range_j = number(zone / "max_energy_range_uj") * 1e-6
    number(zone / "energy_uj")  # may it be read at all?
    return CounterGauge(
        f"rapl {text(zone / 'name')}", RESOLUTION_W, partial(_count_j, zone), range_j
    )


def _count_j(zone: Path) -> float:
    return number(zone / "energy_uj") * 1e-6
