"""A task for the Task Scheduler (Windows): at the user's logon, or when the machine starts."""

import subprocess
from pathlib import PurePath
from xml.etree import ElementTree

from potluck_agent.service.install_steps import AgentService, Remove, RunCommand, Steps, Write

TASK = "potluck-agent"
NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
RESTARTS = 255  # the most that it takes


def path(service: AgentService) -> PurePath:
    """Where the description is, from which the task is made."""
    return service.config / "potluck" / f"{TASK}.xml"


def install(service: AgentService) -> Steps:
    """The task is made, in place of an older one, and started."""
    return [
        Write(path(service), task(service)),
        RunCommand(("schtasks", "/End", "/TN", TASK), "there was no older one"),
        RunCommand(("schtasks", "/Create", "/TN", TASK, "/XML", str(path(service)), "/F")),
        RunCommand(("schtasks", "/Run", "/TN", TASK)),
    ]


def remove(service: AgentService) -> Steps:
    """It is stopped, and the task is gone."""
    return [
        RunCommand(("schtasks", "/End", "/TN", TASK), "it was not running"),
        RunCommand(("schtasks", "/Delete", "/TN", TASK, "/F"), "it was not there"),
        Remove(path(service)),
    ]


def task(service: AgentService) -> bytes:
    """The description, as schtasks reads it. Most elements may stand in any order; those of a
    trigger may not.
    """
    program, *arguments = service.command
    trigger = "BootTrigger" if service.is_system else "LogonTrigger"
    user = {} if service.is_system else {"UserId": service.user}
    tree = {
        "RegistrationInfo": {"Description": "This device takes part in a home"},
        "Triggers": {trigger: {"Enabled": "true", **user}},
        "Principals": {
            "Principal": {
                "UserId": service.user,
                # S4U: also while nobody is logged on, without a password that is kept
                "LogonType": "S4U" if service.is_system else "InteractiveToken",
                "RunLevel": "LeastPrivilege",
            }
        },
        "Settings": {
            "MultipleInstancesPolicy": "IgnoreNew",
            "DisallowStartIfOnBatteries": "false",
            "StopIfGoingOnBatteries": "false",
            "StartWhenAvailable": "true",
            "RunOnlyIfNetworkAvailable": "true",
            "ExecutionTimeLimit": "PT0S",  # none
            "RestartOnFailure": {"Interval": "PT1M", "Count": str(RESTARTS)},
        },
        "Actions": {"Exec": {"Command": program, "Arguments": subprocess.list2cmdline(arguments)}},
    }
    root = ElementTree.Element("Task", {"version": "1.2", "xmlns": NAMESPACE})
    _add(root, tree)
    root.find("Principals/Principal").set("id", "Owner")  # type: ignore[union-attr]
    root.find("Actions").set("Context", "Owner")  # type: ignore[union-attr]
    text: str = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-16"?>\n{text}\n'.encode("utf-16")


def _add(parent: ElementTree.Element, tree: dict[str, object]) -> None:
    for name, value in tree.items():
        child = ElementTree.SubElement(parent, name)
        if isinstance(value, dict):
            _add(child, value)
        else:
            child.text = str(value)
