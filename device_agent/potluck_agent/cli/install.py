"""`potluck agent install`: the agent starts by itself from now on. Each step is said as it is done.

Again with other options it changes them; `--remove` undoes it; `--print` only says.
"""

import os
import shlex
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import ModuleType
from unicodedata import category

from potluck_agent import control_files
from potluck_agent.cli import options
from potluck_agent.errors import AgentError
from potluck_agent.relay.invitations import read_invitation
from potluck_agent.service import launchd, systemd, windows_task
from potluck_agent.service.install_steps import AgentService, Remove, RunCommand, Step, Write

PLATFORMS: dict[str, ModuleType] = {"linux": systemd, "darwin": launchd, "win32": windows_task}
NETWORK_S = 60.0  # to wait for an address after the machine has started
COMMAND_S = 60.0
LOOK_S = 0.5
MAX_PORT = 65_535 - 3  # the first of four in a row
# kinds of signs that no word of a service has: controls, ends of lines, bytes that are no UTF-8
UNSAID = {"Cc", "Zl", "Zp", "Cs"}
NO_XML = "\ufffe\uffff"  # of which the files of macOS and Windows are
# answers of a command that was run: its exit code, and what it wrote
Runner = Callable[[tuple[str, ...]], tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallTarget:
    """The machine on which it is installed. `root`: below which the files are written."""

    platform: str
    user: str
    uid: int
    home: Path
    config: Path
    python: Path
    is_admin: bool
    run: Runner
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    root: Path | None = None

    def at(self, path: PurePath) -> Path:
        """Where a file is written."""
        return Path(path) if self.root is None else self.root / path.relative_to(path.anchor)


def this_machine(say: Callable[[str], None]) -> InstallTarget:
    """This machine and whoever uses it: behind sudo, the user who asks for it."""
    if sys.platform == "win32":
        domain, user = os.environ.get("USERDOMAIN", ""), os.environ.get("USERNAME", "")
        config = Path(os.environ.get("APPDATA") or Path.home())
        name = f"{domain}\\{user}" if domain else user
        uid = 0
        home = Path.home()
        is_admin = True  # schtasks says so where it is missing
    else:
        import pwd

        is_admin = os.geteuid() == 0
        entry = pwd.getpwuid(int(os.environ.get("SUDO_UID") or os.getuid()))
        name = entry.pw_name
        uid = entry.pw_uid
        home = Path(entry.pw_dir)
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    python = Path(sys.executable)
    if sys.platform == "win32" and python.with_name("pythonw.exe").exists():
        python = python.with_name("pythonw.exe")  # without a window
    return InstallTarget(
        platform="linux" if sys.platform.startswith("linux") else sys.platform,
        user=name,
        uid=uid,
        home=home,
        config=config,
        python=python,
        is_admin=is_admin,
        run=_run,
        say=say,
    )


def run(given: Namespace, start_words: list[str], place: InstallTarget) -> int:
    """Install or remove; `start_words`: the options of `start` that the service gets.

    Raises
    ------
    AgentError
        There is no service of a known kind here, or a step failed.
    """
    kind = PLATFORMS.get(place.platform)
    if kind is None:
        raise AgentError(
            f"there is no service for {place.platform} here. Start the agent by whatever starts "
            "programs there: potluck agent start."
        )
    service = _service(given, start_words, place)
    if not given.remove:
        _check(given, service)
    if given.system and not place.is_admin and not given.only_print:
        raise AgentError(
            f"a service of the system needs root. Run: sudo {shlex.join(_again(place))}"
        )
    if not given.system and place.platform != "win32" and place.uid != os.getuid():
        raise AgentError(
            f"this would be a service of {place.user}, written by root. Run it without sudo; with "
            "--system it starts with the machine."
        )
    steps = kind.remove(service) if given.remove else kind.install(service)
    if given.remove and not place.at(kind.path(service)).exists() and not given.only_print:
        place.say(f"nothing is installed: there is no {place.at(kind.path(service))}")
        return 0
    for step in steps:
        place.say(_described(step, place))
        if isinstance(step, Write) and given.only_print:
            place.say(step.data.decode("utf-16" if step.data[:2] in _BOMS else "utf-8"))
        if not given.only_print:
            _do(step, place)
    if not given.only_print and not given.remove:
        _print_next(_state(given, place), place)
    return 0


_BOMS = (b"\xff\xfe", b"\xfe\xff")


def _again(place: InstallTarget) -> list[str]:
    return [str(place.python), "-m", "potluck_agent", *sys.argv[1:]]


def _state(given: Namespace, place: InstallTarget) -> Path:
    """The state directory of the user whose agent it will be."""
    if given.state is not None or place.uid == getattr(os, "getuid", lambda: 0)():
        return options.state_dir(given).absolute()
    return place.home / ".config" / "potluck" / "agent"  # root installs it for somebody


def _service(given: Namespace, start_words: list[str], place: InstallTarget) -> AgentService:
    state = f"--state={_state(given, place)}"
    command = (str(place.python), "-m", "potluck_agent", "start", state)
    return AgentService(
        command=(*command, f"--await-network={NETWORK_S:g}", *start_words),
        user=place.user,
        uid=place.uid,
        home=place.home,
        config=place.config,
        is_system=given.system,
        drain_s=given.drain,
    )


def _check(given: Namespace, service: AgentService) -> None:
    """Refuse what `start` would refuse at every start, and words that a unit cannot have."""
    options.device_name(given)
    if not 0 <= given.port <= MAX_PORT:
        raise AgentError(f"--port: 0 to {MAX_PORT} is expected, got {given.port}.")
    for word in (*service.command, service.user):
        if any(category(sign) in UNSAID or sign in NO_XML for sign in word):
            raise AgentError(
                f"{word!r} cannot stand in a service: it has a line break, a control character, or "
                "bytes that are not UTF-8. Choose another path."
            )
    _check_address(given.bind)
    if given.relay is not None:
        read_invitation(given.relay)
    if given.log_file is not None and not given.log_file.absolute().parent.is_dir():
        raise AgentError(f"--log-file {given.log_file}: there is no such folder.")
    if given.record is not None:
        raise AgentError(
            "--record writes a new file, and a service starts again and again. Start the agent "
            "by hand to record: potluck agent start --record FILE."
        )


def _check_address(host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError as error:
        raise AgentError(
            f"--bind {host}: {error.strerror or error}. Give it an address of this device, or "
            "leave it out to listen everywhere."
        ) from error


def _described(step: Step, place: InstallTarget) -> str:
    match step:
        case Write(path=path):
            return f"write {place.at(path)}"
        case Remove(path=path):
            return f"remove {place.at(path)}"
        case RunCommand(line=line):
            return f"run {shlex.join(line)}"


def _do(step: Step, place: InstallTarget) -> None:
    try:
        match step:
            case Write(path=path, data=data):
                place.at(path).parent.mkdir(parents=True, exist_ok=True)
                place.at(path).write_bytes(data)
            case Remove(path=path):
                place.at(path).unlink(missing_ok=True)
            case RunCommand():
                _do_run(step, place)
    except OSError as error:
        raise AgentError(
            f"{error.filename or _described(step, place)}: {error.strerror}. Nothing more was done."
        ) from error


def _do_run(step: RunCommand, place: InstallTarget) -> None:
    code, output = place.run(step.line)
    waited_s = 0.0
    while code != 0 and waited_s < step.retry_s:
        place.sleep(LOOK_S)
        waited_s += LOOK_S
        code, output = place.run(step.line)
    if code == 0:
        return
    reason = " ".join(output.split()) or f"exit code {code}"
    if step.otherwise is not None:
        place.say(f"  {reason}: {step.otherwise}")
        return
    raise AgentError(
        f"`{shlex.join(step.line)}` failed: {reason}. What was written stays; mend that and run it "
        "again, or undo it with --remove."
    )


def _print_next(state: Path, place: InstallTarget) -> None:
    other = control_files.running(state)
    if other is not None:
        place.say(
            f"an agent runs (process {other['pid']}). If you started it by hand, stop it: the "
            "service takes over within seconds."
        )
    place.say("What it does: potluck agent status. To pair: potluck agent pair.")


def _run(line: tuple[str, ...]) -> tuple[int, str]:
    """Carry it out; as a shell, 127 where there is no such command."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        return 127, f"{line[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {COMMAND_S:g} s"
    return done.returncode, done.stderr or done.stdout
