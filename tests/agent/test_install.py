"""The agent as a service: what is written is what each system takes, and it can be done again and
undone. The systems are played as they behave where they say no.
"""

import dataclasses
import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.agents import Keys, command

from potluck_agent.cli import arguments, install, options
from potluck_agent.errors import AgentError
from potluck_agent.service import launchd, systemd, windows_task
from potluck_agent.service.install_steps import AgentService

PLATFORMS = tuple(install.PLATFORMS)
BOTH = [(platform, system) for platform in PLATFORMS for system in (False, True)]
PYTHON = Path(sys.executable)


class Machine:
    """A systemctl, a launchctl or a schtasks, and what is loaded in it."""

    def __init__(self, root, platform):
        self.root, self.platform = root, platform
        self.lines = []
        self.loaded = None
        self.known = None
        self.breaks = {}
        self.n_bootstraps_refused = 0

    def run(self, line):
        self.lines.append(line)
        for part, answer in self.breaks.items():
            if part in line:
                return answer
        return {"systemctl": self.systemctl, "launchctl": self.launchctl}.get(
            line[0], {"schtasks": self.schtasks, "loginctl": lambda *_: (0, "")}.get(line[0])
        )(line)

    def file(self):
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return found[0].read_bytes() if found else None

    def systemctl(self, line):
        verb = next(word for word in line[1:] if not word.startswith("--"))
        if verb == "daemon-reload":
            self.known = self.file()
        elif self.known is None:
            return 1, f"Failed to {verb} unit: Unit file potluck-agent.service does not exist."
        elif verb == "restart":
            self.loaded = self.known
        elif verb == "disable":
            self.loaded = None
        return 0, ""

    def launchctl(self, line):
        if line[1] == "bootout":
            if self.loaded is None:
                return 3, "Boot-out failed: 3: No such process"
            self.loaded, self.n_bootstraps_refused = None, 2
        if line[1] == "bootstrap":
            if self.loaded is not None or self.n_bootstraps_refused:
                self.n_bootstraps_refused -= 1
                return 5, "Bootstrap failed: 5: Input/output error"
            self.loaded = self.file()
        return 0, ""

    def schtasks(self, line):
        missing = 1, "ERROR: The system cannot find the file specified."
        if line[1] == "/Create":
            if self.loaded is not None and "/F" not in line:
                return 1, "WARNING: The task name already exists."
            self.loaded = self.file()
        elif self.loaded is None:
            return missing
        elif line[1] == "/Delete":
            self.loaded = None
        return 0, ""


class Shell:
    """`potluck agent install ...` on such a machine."""

    def __init__(self, root, platform, *, is_admin=True):
        self.machine, self.said = Machine(root, platform), []
        self.place = install.InstallTarget(
            platform=platform,
            user="ada",
            uid=os.getuid(),
            home=Path("/home/ada"),
            config=Path("/home/ada/.config"),
            python=PYTHON,
            is_admin=is_admin,
            run=self.machine.run,
            say=self.said.append,
            sleep=lambda _: None,
            root=root,
        )

    def __call__(self, *words):
        line = ["install", *words]
        return install.run(arguments.read(line), arguments.start_words(line), self.place)


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("POTLUCK_HOME", str(tmp_path / "potluck"))


def words_of(platform, system):
    return ("--system",) if system else ()


# --- the whole of it ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("platform", "system"), BOTH)
def test_it_is_installed_changed_and_removed_as_often_as_one_likes(tmp_path, platform, system):
    shell = Shell(tmp_path / "root", platform)
    words = words_of(platform, system)
    for name in ("jetson", "jetson", "nas"):
        assert shell(*words, "--name", name) == 0
        assert f"--name={name}".encode() in shell.machine.loaded.replace(b"\0", b"")
    for _ in range(2):
        assert shell(*words, "--remove") == 0
        assert shell.machine.loaded is None
        assert shell.machine.file() is None
    assert shell.said[-1].startswith("nothing is installed")
    assert shell(*words) == 0
    assert shell.machine.loaded is not None


@pytest.mark.parametrize(("platform", "system"), BOTH)
def test_each_step_is_said_and_print_does_none(tmp_path, platform, system):
    done, only_said = Shell(tmp_path / "a", platform), Shell(tmp_path / "b", platform)
    done(*words_of(platform, system), "--memory", "2GiB")
    assert only_said(*words_of(platform, system), "--memory", "2GiB", "--print") == 0
    steps = [line for line in done.said if line.startswith(("write ", "run "))]
    assert len(steps) == 1 + len({*done.machine.lines})
    lines = [line.replace("/b/", "/a/") for line in only_said.said]
    assert [line for line in lines if line.startswith(("write ", "run "))] == steps
    assert any("--memory=2GiB" in line for line in only_said.said)
    assert only_said.machine.lines == []
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("platform", "part", "answer"),
    [
        ("linux", "daemon-reload", (1, "Failed to connect to bus: No medium found")),
        ("linux", "enable", (127, "systemctl is not installed")),
        ("darwin", "bootstrap", (5, "Bootstrap failed: 5: Input/output error")),
        ("win32", "/Create", (1, "ERROR: Access is denied.")),
    ],
)
def test_a_step_that_fails_is_named_with_its_reason_and_the_way_on(
    tmp_path, platform, part, answer
):
    shell = Shell(tmp_path, platform)
    shell.machine.breaks[part] = answer
    with pytest.raises(AgentError) as failed:
        shell()
    assert answer[1] in str(failed.value)
    assert "--remove" in str(failed.value)
    shell.machine.breaks.clear()
    assert shell() == 0  # mended: it goes on where it was


def test_a_user_who_may_not_linger_is_told_what_that_means(tmp_path):
    shell = Shell(tmp_path, "linux")
    shell.machine.breaks["enable-linger"] = (1, "Could not enable linger: Access denied")
    assert shell() == 0
    assert any("Access denied" in line and "sudo loginctl" in line for line in shell.said)


def test_the_system_s_service_needs_root_and_says_how(tmp_path):
    with pytest.raises(AgentError, match="sudo"):
        Shell(tmp_path, "linux", is_admin=False)("--system")
    assert not list(tmp_path.iterdir())


def test_the_user_s_own_service_is_not_installed_by_root_for_them(tmp_path):
    shell = Shell(tmp_path, "linux")
    shell.place = dataclasses.replace(shell.place, uid=12345)
    with pytest.raises(AgentError, match="without sudo"):
        shell()
    shell("--system")
    (line,) = re.findall("ExecStart=.*", shell.machine.loaded.decode())
    assert '"--state=/home/ada/.config/potluck/agent"' in line
    shell("--system", "--state", "/var/lib/my agent")
    assert '"--state=/var/lib/my agent"' in shell.machine.loaded.decode()


def test_a_platform_without_services_is_said(tmp_path):
    with pytest.raises(AgentError, match="no service for freebsd14"):
        Shell(tmp_path, "freebsd14")()


def test_wrong_options_are_found_before_anything_is_written():
    answer = command("install", "--print", "--memory", "lots")
    assert answer.returncode == 2
    assert "no amount of memory" in answer.stderr
    assert command("install", "--print", "--json").returncode == 2


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize(
    "words",
    [
        ("--state", "/tmp/x\nExecStartPre=/bin/touch /tmp/pwned"),
        ("--state", "/tmp/x\r"),
        ("--state", "/tmp/\udcff"),
        ("--log-file", "/tmp/a\x1bb"),
        ("--bind", "::\n[Unit]"),
        ("--name", "a\nb"),
        ("--name", "Ada's"),
        ("--name", "home"),
        ("--port", "99999999"),
        ("--port", "65535"),
        ("--port", "-1"),
    ],
)
def test_what_start_would_refuse_or_a_unit_would_take_for_a_line_is_not_written(
    tmp_path, platform, words
):
    shell = Shell(tmp_path, platform)
    with pytest.raises(AgentError):
        shell(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.few(9)
@pytest.mark.parametrize(("platform", "system"), BOTH)
@pytest.mark.parametrize("option", ["--state", "--name", "--log-file", "--record"])
@pytest.mark.parametrize(
    "sign", ["\n", "\r", "\x0b", "\x1b", "\x7f", "\x85", "\u2028", "\udcff", "\uffff"]
)
def test_no_option_has_a_sign_that_no_file_of_a_service_can_say(
    tmp_path, platform, system, option, sign
):
    shell = Shell(tmp_path, platform)
    word = f"/tmp/x{sign}ExecStartPre=/bin/touch /tmp/y"
    refused = r"cannot stand in a service|cannot be a device's name"
    for only_print in ((), ("--print",)):
        with pytest.raises(AgentError, match=refused):
            shell(*words_of(platform, system), *only_print, option, word)
    assert (shell.said, shell.machine.lines, [*tmp_path.iterdir()]) == ([], [], [])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--record", "life.rec"), "starts again and again"),
        (("--relay", "nobody.json"), "there is no .*nobody.json"),
        (("--log-file", "nowhere/agent.log"), "there is no such folder"),
        (("--bind", "192.0.2.1"), "Give it an address of this device"),
        (("--bind", "nobody.invalid"), "Give it an address of this device"),
    ],
)
def test_what_would_fail_at_every_start_is_not_installed(tmp_path, words, why):
    shell = Shell(tmp_path, "linux")
    with pytest.raises(AgentError, match=why):
        shell(*words)
    assert not list(tmp_path.iterdir())
    assert shell("--remove", *words) == 0


def test_what_was_installed_with_such_words_can_be_removed(tmp_path):
    shell = Shell(tmp_path, "linux")
    for words in (("--name", "Ada's"), ("--state", "/tmp/x\n"), ("--port", "65535")):
        assert shell("--remove", *words) == 0


# --- the command ----------------------------------------------------------------------------------

KEYS = Keys()
GIVEN = [
    ["--name", "jetson", "--port", "28000", "--no-mdns"],
    ["--threads", "2", "--memory", "2GiB", "--backends", "torch", "--power", "2,8,1"],
    ["--trust", f"{KEYS.public}:ada", "--trust", f"-{KEYS.public[1:]}:bob", "--bind", "::"],
    ["--log-file", "my log.txt", "--log-level", "debug", "--hang", "3"],
]


@pytest.mark.parametrize("given_words", GIVEN)
def test_the_service_starts_the_agent_as_these_words_would(given_words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = arguments.start_words(["install", "--system", *given_words])
    wanted = options.start_options(arguments.read(["start", *given_words]), 0)
    got = options.start_options(arguments.read(["start", *start]), 0)
    for field in wanted.__slots__:
        one, other = getattr(wanted, field), getattr(got, field)
        assert (one.absolute() if isinstance(one, Path) else one) == other, field


def unquoted(text):
    """As systemd reads words in quotes: the manual's page systemd.service, "Command lines"."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return [re.sub(r"\\(.)", r"\1", word).replace("%%", "%").replace("$$", "$") for word in words]


@pytest.mark.long
@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126)), min_size=1))
def test_systemd_reads_each_word_as_it_was(words):
    service = AgentService(
        command=tuple(words),
        user="ada",
        uid=1000,
        home=Path("/home/ada"),
        config=Path("/home/ada/.config"),
        is_system=False,
    )
    (line,) = re.findall("^ExecStart=(.*)$", systemd.unit(service), re.MULTILINE)
    assert unquoted(line) == words


# --- what each system takes -----------------------------------------------------------------------


def made(platform, root, *words):
    """The file that is written."""
    shell = Shell(root, platform)
    shell(*words)
    (path,) = [path for path in root.rglob("*") if path.is_file()]
    return path


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("system", [False, True])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path, system):
    words = ("--trust", f"{KEYS.public[:-3]}%$x:ada", "--log-file", str(tmp_path / "my log"))
    path = made("linux", tmp_path, *words_of("linux", system), *words)
    if system:  # of a user that there is
        path.write_text(path.read_text().replace("User=ada", "User=root"))
    line = ["systemd-analyze", "verify", "--man=no", *([] if system else ["--user"]), str(path)]
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    complaints = [row for row in (done.stdout + done.stderr).splitlines() if path.name in row]
    assert (done.returncode, complaints) == (0, [])


# what would take from the worker or the meters what they need -> why
BREAKS = {
    "MemoryDenyWriteExecute": "torch and oneDNN write code and run it",
    "RestrictNamespaces": "the worker cuts itself off in namespaces of users and networks",
    "SystemCallFilter": "the worker filters its own, and needs Landlock's for it",
    "PrivateDevices": "meters and accelerators are devices",
    "DeviceAllow": "the same",
    "ProtectClock": "it closes all devices but the clock",
    "PrivateNetwork": "it serves the network",
    "ProtectProc": "the worker counts its memory there",
    "ProcSubset": "the same",
    "LimitNOFILE": "the agent takes what strangers may take",
    "MemoryMax": "the worker's limit is the owner's --memory",
}


@pytest.mark.parametrize("system", [False, True])
def test_the_unit_s_guards_leave_the_worker_s_own_alone(tmp_path, system):
    text = made("linux", tmp_path, *words_of("linux", system)).read_text()
    rows = dict(row.split("=", 1) for row in text.splitlines() if "=" in row)
    assert not BREAKS.keys() & rows.keys()
    assert rows["NoNewPrivileges"] == "yes"
    assert rows["Restart"] == "on-failure"
    assert ("network-online.target" in rows.get("After", "")) is system
    assert "--await-network=60" in rows["ExecStart"]  # a user's systemd knows no such target
    assert ("User" in rows) is system


@pytest.mark.parametrize("system", [False, True])
def test_the_property_list_says_what_launchd_knows(tmp_path, system):
    path = made("darwin", tmp_path, *words_of("darwin", system), "--name", "mac")
    document = plistlib.loads(path.read_bytes())
    assert document["Label"] == path.stem == launchd.LABEL
    assert document["ProgramArguments"][:4] == [str(PYTHON), "-m", "potluck_agent", "start"]
    assert "--name=mac" in document["ProgramArguments"]
    assert (document["RunAtLoad"], document["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert document.get("UserName") == ("ada" if system else None)
    folder = "LaunchDaemons" if system else "LaunchAgents"
    assert path.parent.name == folder


# The order of elements where the schema fixes one: triggerBaseType and its extensions.
TRIGGER = ("Enabled", "StartBoundary", "EndBoundary", "Repetition", "ExecutionTimeLimit", "UserId")
SETTINGS = {
    "AllowStartOnDemand", "RestartOnFailure", "MultipleInstancesPolicy",
    "DisallowStartIfOnBatteries", "StopIfGoingOnBatteries", "AllowHardTerminate",
    "StartWhenAvailable", "RunOnlyIfNetworkAvailable", "WakeToRun", "Enabled", "Hidden",
    "IdleSettings", "ExecutionTimeLimit", "Priority",
}  # fmt: skip


@pytest.mark.parametrize("system", [False, True])
def test_the_task_follows_the_schema(tmp_path, system):
    path = made("win32", tmp_path, *words_of("win32", system), "--log-file", "/my log")
    data = path.read_bytes()
    assert data.decode("utf-16").startswith('<?xml version="1.0" encoding="UTF-16"?>')
    root = ElementTree.fromstring(data)
    at = f"{{{windows_task.NAMESPACE}}}"
    assert root.tag == f"{at}Task"

    def names(path):
        return [child.tag.removeprefix(at) for child in root.find(path, {"": at[1:-1]})]

    assert set(names(".")) == {
        "RegistrationInfo", "Triggers", "Principals", "Settings", "Actions"
    }  # fmt: skip
    (trigger,) = names("Triggers")
    assert trigger == ("BootTrigger" if system else "LogonTrigger")
    inside = names(f"Triggers/{trigger}")
    assert inside == sorted(inside, key=TRIGGER.index)
    assert set(names("Settings")) <= SETTINGS
    assert set(names("Settings/RestartOnFailure")) == {"Interval", "Count"}
    assert 1 <= windows_task.RESTARTS <= 255  # an unsigned byte
    space = {"": at[1:-1]}
    principal = root.find("Principals/Principal", space)
    assert root.find("Actions", space).get("Context") == principal.get("id")
    assert root.findtext("Actions/Exec/Command", namespaces=space) == str(PYTHON)
    line = root.findtext("Actions/Exec/Arguments", namespaces=space)
    assert line.startswith("-m potluck_agent start ")
    assert '"--log-file=/my log"' in line
