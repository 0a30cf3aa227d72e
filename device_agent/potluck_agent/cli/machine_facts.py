"""What an agent says of its machine, and what measures the power there."""

import os
from pathlib import Path
from typing import Any

from potluck_agent.cli.options import Options


def meter_and_facts(chosen: Options) -> tuple[Any, dict[str, Any]]:
    """Where power readings come from, and what the capability statement says about this machine."""
    import platform

    from potluck_agent.cli.hardware import hardware
    from potluck_agent.meters import charge_frac, explain, open_meter
    from potluck_agent.net.network_interface import connection
    from potluck_wire.machine_identity import machine_name

    power = chosen.power
    facts: dict[str, Any] = {
        "host": machine_name(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "connection": connection(),
        "hardware": [] if chosen.is_emulated else hardware(),
        "battery_frac": None if chosen.is_emulated else charge_frac(Path("/")),
        "meters": [_statement(found) for found in explain()],
        "rules": list(chosen.rules.words),
    }
    if chosen.is_emulated:
        facts["emulated"] = {
            "slowdown": chosen.slowdown,
            "link_bytes_per_s": chosen.link_bytes_per_s or None,
        }
    if power is not None:
        facts["power"] = {"idle_w": power.idle_w, "busy_w": power.busy_w, "radio_w": power.radio_w}
    watts = (power.idle_w, power.busy_w, power.radio_w) if power is not None else None
    return open_meter(power=watts, emulated=chosen.is_emulated), facts


def _statement(found: Any) -> dict[str, str]:
    source = "measured" if found.present else ""
    return {"name": found.meter, "source": source, "reason": found.reason, "remedy": found.remedy}
