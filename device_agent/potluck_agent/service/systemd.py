"""A unit for systemd (Linux), of the user or of the system.

Its guards leave the worker's own alone: that one makes a namespace for users and networks, filters
its system calls, restricts its files and lets libraries write code that they then run; and meters
and accelerators are devices. So no `RestrictNamespaces`, `SystemCallFilter`,
`MemoryDenyWriteExecute`, `PrivateDevices`, nor `ProtectClock`, which closes all devices but one.
"""

from pathlib import PurePath

from potluck_agent.service.install_steps import AgentService, Remove, RunCommand, Step, Steps, Write

UNIT = "potluck-agent.service"
_GUARDS = """\
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
"""
# These need a namespace of their own, which a user's systemd cannot make everywhere.
_SYSTEM_GUARDS = """\
PrivateTmp=yes
ProtectSystem=full
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
CapabilityBoundingSet=
AmbientCapabilities=
"""


def path(service: AgentService) -> PurePath:
    """Where the unit is."""
    if service.is_system:
        return PurePath("/etc/systemd/system") / UNIT
    return service.config / "systemd" / "user" / UNIT


def install(service: AgentService) -> Steps:
    """The unit is written and started, now and from now on."""
    systemctl = _systemctl(service)
    steps: list[Step] = [
        Write(path(service), unit(service).encode()),
        RunCommand((*systemctl, "daemon-reload")),
        RunCommand((*systemctl, "enable", UNIT)),
        RunCommand((*systemctl, "restart", UNIT)),
    ]
    if not service.is_system:
        otherwise = (
            "so the agent runs only while you are logged in; an administrator can change that: "
            f"sudo loginctl enable-linger {service.user}"
        )
        steps.append(RunCommand(("loginctl", "enable-linger", service.user), otherwise))
    return steps


def remove(service: AgentService) -> Steps:
    """It is stopped, and the unit is gone. That the user's services go on without a login may be
    wanted for others: it stays.
    """
    systemctl = _systemctl(service)
    return [
        RunCommand((*systemctl, "disable", "--now", UNIT), "it was not there"),
        Remove(path(service)),
        RunCommand((*systemctl, "daemon-reload"), "systemd still knows it until it starts anew"),
    ]


def _systemctl(service: AgentService) -> tuple[str, ...]:
    return ("systemctl",) if service.is_system else ("systemctl", "--user")


def unit(service: AgentService) -> str:
    """The text of the unit."""
    network = ""
    guards = _GUARDS
    user = ""
    if service.is_system:
        network = "Wants=network-online.target\nAfter=network-online.target\n"
        guards += _SYSTEM_GUARDS
        user = f"User={service.user}\n"
    command = " ".join(_quoted(word, is_command=True) for word in service.command)
    target = "multi-user.target" if service.is_system else "default.target"
    return f"""\
[Unit]
Description=potluck agent: this device takes part in a home
{network}StartLimitIntervalSec=0

[Service]
{user}ExecStart={command}
WorkingDirectory=/
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec={service.stop_s:g}
{guards}
[Install]
WantedBy={target}
"""


def _quoted(word: str, *, is_command: bool = False) -> str:
    """As systemd reads one word: its own signs doubled, in quotes."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if is_command:
        word = word.replace("$", "$$")
    return f'"{word}"'
