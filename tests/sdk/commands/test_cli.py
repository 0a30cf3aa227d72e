"""The command line: light to start, one clear line for an error, the exit codes promised."""

import os
import subprocess
import sys
import types

import pytest

from potluck import cli, errors
from potluck.discover.keyring import Keyring, KnownDevice

HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "matplotlib",
    "zmq",
    "zeroconf",
    "onnx",
    "onnxruntime",
    "rich",
    "asyncio",
    "IPython",
)


def modules_of(*arguments: str, program: str = "potluck") -> tuple[set[str], str]:
    """Top-level names of everything that `python -m PROGRAM ARGUMENTS` imports, and what it
    prints.
    """
    command = [sys.executable, "-X", "importtime", "-m", program, *arguments]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"}
    )
    timed = [
        line.rsplit("|", 1)[1].strip()
        for line in run.stderr.splitlines()
        if line.startswith("import time:")
    ]
    return {name.split(".")[0] for name in timed} | set(timed), run.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in cli.COMMANDS if name not in ("agent", "demo")),
    ],
)
def test_help_and_version_import_nothing_heavy(arguments):
    modules, printed = modules_of(*arguments)
    assert "argparse" in modules
    assert modules.isdisjoint(HEAVY)
    assert printed


def test_help_of_the_agent_waits_for_nothing_of_the_agent():
    modules, printed = modules_of("--help", program="potluck_agent")
    ours = {name for name in modules if name.startswith("potluck_agent.")}
    arguments = {f"potluck_agent.cli.{name}" for name in ("arguments", "relay_arguments")}
    assert ours == {"potluck_agent.cli", *arguments}
    assert modules.isdisjoint({*HEAVY, "dataclasses", "msgpack"})
    assert "forget" in printed


def test_top_level_help_imports_no_command_and_names_every_one():
    modules, printed = modules_of("--help")
    assert not any(name.startswith("potluck.commands") for name in modules)
    for name in cli.COMMANDS:
        assert f"\n  {name} " in printed


def test_no_command_shows_the_help_as_wrong_usage(capsys):
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["--nonsense"], ["bench"], ["bench", "nonsense"]]
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: potluck" in capsys.readouterr().err


def command(monkeypatch, error):
    def main(args):
        raise error

    module = types.SimpleNamespace(add_arguments=lambda parser: None, main=main)
    monkeypatch.setitem(sys.modules, "potluck.commands.devices", module)


def test_an_error_of_the_tree_is_one_line_and_exit_code_1(monkeypatch, capsys):
    error = errors.DeviceGone("stopped\nanswering \x1b[2J", device="phone", next_step="Is it on?")
    command(monkeypatch, error)
    assert cli.main(["devices"]) == 1
    assert capsys.readouterr().err == "potluck: phone: stopped answering �[2J Is it on?\n"


def test_an_interrupt_exits_with_130_and_no_traceback(monkeypatch, capsys):
    command(monkeypatch, KeyboardInterrupt())
    assert cli.main(["devices"]) == 130
    assert capsys.readouterr().err == "potluck: interrupted\n"


def test_an_error_that_is_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["devices"])


def test_the_version_is_that_of_the_wire(capsys):
    from potluck_wire import __version__

    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"potluck {__version__}\n"


@pytest.mark.skipif(os.name == "nt", reason="exec is for other systems")
def test_agent_hands_over_all_its_arguments(monkeypatch):
    called = []

    def execv(path, command):
        called.append((path, command))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        cli.main(["agent", "--port", "0", "--help"])
    assert called == [
        (sys.executable, [sys.executable, "-m", "potluck_agent", "--port", "0", "--help"])
    ]


@pytest.mark.parametrize("command", [["coordinate", "--port"], ["watch", "--port"]])
@pytest.mark.parametrize("text", ["x", "-1", "65536", "1e3", "", "٣"])
def test_what_is_no_port_is_refused_by_its_name(command, text, capsys):
    with pytest.raises(SystemExit):
        cli.main([command[0], f"{command[1]}={text}"])
    assert f"--port: {text!r}: a port from 1 to 65535 is expected" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["devices", "doctor", "pair", "watch", "top"])
@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "1e400", "3601", ""])
def test_what_is_no_time_to_wait_is_refused_by_its_name(command, text, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, f"--wait={text}"])
    assert f"--wait: {text!r}: seconds from 0 to 3600" in capsys.readouterr().err


def test_a_key_of_nobody_who_is_joined_is_refused(capsys):
    assert cli.main(["coordinate", "--key", "k" * 40]) == 1
    assert "--key is of the coordinator that is joined" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["-" + "a" * 39, "-9" + "x" * 38, "--" + "q" * 38])
def test_a_key_that_begins_like_an_option_is_a_key(monkeypatch, key):
    calls = []
    monkeypatch.setattr("potluck.commands.coordinate.main", calls.append)
    assert cli.main(["coordinate", "--trust", key, "--port", "7"]) == 0
    assert (calls[0].trust, calls[0].port) == ([key], 7)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "encoding"),
    [
        (["peers"], "ascii"),
        (["peers"], "latin-1"),
        (["peers"], "cp1252"),
        (["plan", "smart-home-1", "bert-base"], "ascii"),  # what it prints, the others lack, too
    ],
)
def test_a_terminal_without_our_letters_shows_the_others(tmp_path, arguments, encoding):
    Keyring(tmp_path).remember(KnownDevice(name="phone", key="k" * 40))
    ran = subprocess.run(
        [sys.executable, "-m", "potluck.cli", *arguments],
        env={**os.environ, "PYTHONIOENCODING": encoding, "POTLUCK_HOME": str(tmp_path)},
        capture_output=True,
    )
    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False), ran.stderr
    assert b"phone" in ran.stdout or arguments != ["peers"]
