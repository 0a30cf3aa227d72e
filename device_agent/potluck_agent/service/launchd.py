"""A property list for launchd (macOS), of the user or of the system."""

import math
import plistlib
from pathlib import PurePath

from potluck_agent.service.install_steps import AgentService, Remove, RunCommand, Steps, Write

LABEL = "home.potluck.agent"
ENDING_S = 10.0  # bootout comes back before the older one has ended


def path(service: AgentService) -> PurePath:
    """Where the list is."""
    if service.is_system:
        return PurePath("/Library/LaunchDaemons") / f"{LABEL}.plist"
    return service.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"


def install(service: AgentService) -> Steps:
    """The list is written and loaded, in place of an older one."""
    return [
        Write(path(service), plist(service)),
        RunCommand(
            ("launchctl", "bootout", f"{_domain(service)}/{LABEL}"), "there was no older one"
        ),
        RunCommand(("launchctl", "enable", f"{_domain(service)}/{LABEL}")),
        RunCommand(
            ("launchctl", "bootstrap", _domain(service), str(path(service))), None, ENDING_S
        ),
    ]


def remove(service: AgentService) -> Steps:
    """It is stopped, and the list is gone."""
    return [
        RunCommand(("launchctl", "bootout", f"{_domain(service)}/{LABEL}"), "it was not there"),
        Remove(path(service)),
    ]


def _domain(service: AgentService) -> str:
    return "system" if service.is_system else f"gui/{service.uid}"


def plist(service: AgentService) -> bytes:
    """The property list. What the agent says is in its own log."""
    document = {
        "Label": LABEL,
        "ProgramArguments": list(service.command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": math.ceil(service.stop_s),
        "ThrottleInterval": 10,  # seconds between two starts, launchd's own default
        "WorkingDirectory": "/",
        "Umask": 0o077,
        "ProcessType": "Interactive",  # others get less of the processor
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": "/dev/null",
    }
    if service.is_system:
        document["UserName"] = service.user
    return plistlib.dumps(document, sort_keys=False)
