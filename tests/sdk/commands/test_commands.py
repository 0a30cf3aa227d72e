"""The commands about devices: with real keys and a real agent on this machine."""

import errno
import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from potluck import cli
from potluck.commands import doctor
from potluck.discover import keyring
from potluck.display import tables
from potluck.sessions.events import Address
from potluck.sessions.members import Member
from potluck_wire.limits import PAIRING_OFFSET
from potluck_wire.processors import row

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """This computer's keys in a place of their own."""
    monkeypatch.setenv("POTLUCK_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def tablet(tmp_path):
    """What a running agent with an open pairing window says of itself."""
    command = [
        sys.executable,
        "-m",
        "potluck_agent",
        "start",
        "--pair",
        "--json",
        "--no-mdns",
        "--name",
        "tablet",
    ]
    command += [
        "--bind",
        "127.0.0.1",
        "--port",
        "0",
        "--state",
        str(tmp_path / "agent"),
        "--memory",
        "256Mi",
    ]
    command += ["--parent-pid", str(os.getpid()), "--threads", "1", "--device", "cpu"]
    command += ["--backends", "onnxruntime"]  # is there sooner than torch
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.mark.long
def test_pairing_lists_and_forgetting_with_a_real_agent(tablet, capsys):
    place = f"127.0.0.1:{tablet['port']}"
    wrong = "00000000" if tablet["code"] != "00000000" else "11111111"
    assert cli.main(["pair", place, "--code", wrong]) == 1
    assert "2 tries are left" in capsys.readouterr().err
    assert cli.main(["pair", place, "--code", tablet["code"]]) == 0
    assert capsys.readouterr().out == "Paired with tablet.\n"
    assert cli.main(["devices", place]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == ["tablet", "ready", place, "256"]
    computing, finding, bounds = doctor.sessions([place])
    assert computing.what.startswith("tablet computes on ")
    assert "1 of " in computing.what
    assert "bounds" in bounds.what
    assert finding.what.startswith("tablet ")
    assert cli.main(["forget", "tablet"]) == 0
    assert cli.main(["devices", place]) == 0
    assert "not paired" in capsys.readouterr().out


def test_an_address_where_nobody_is_is_told(capsys):
    with socket.socket() as taken:  # bound and not listening: nobody else listens there meanwhile
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1] - PAIRING_OFFSET}"
        assert cli.main(["devices", place]) == 1
    output = "".join(capsys.readouterr())
    assert output.count(f"nobody answers at {place}") == output.count(place) == 1
    assert "not paired" not in output


@pytest.mark.parametrize(
    "command", [["devices"], ["pair", "--code", "12345678"]], ids=["devices", "pair"]
)
def test_a_name_that_no_network_knows_is_told_as_such(command, capsys):
    assert cli.main([*command, "no-such-host.invalid"]) == 1
    output = "".join(capsys.readouterr())
    assert "the name 'no-such-host.invalid' is not known in this network" in output
    assert output.count("no-such-host.invalid") == 1
    assert "not paired" not in output


@pytest.mark.long
def test_a_paired_device_is_known_by_its_key_at_any_of_its_addresses(tablet, state, capsys):
    place, other = (f"{host}:{tablet['port']}" for host in ("127.0.0.1", "localhost"))
    assert cli.main(["pair", place, "--code", tablet["code"]]) == 0
    keyring.Keyring().remember(
        keyring.KnownDevice(name="phone", key=KEY, addresses=(Address(host="127.0.0.1", port=1),))
    )
    capsys.readouterr()
    assert cli.main(["devices", other]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split()[:3] for row in rows] == [["tablet", "ready", other]]


@pytest.mark.long
def test_who_is_paired_is_not_said_to_be_not_paired(tablet, capsys):
    place = f"127.0.0.1:{tablet['port']}"
    assert cli.main(["pair", place, "--code", tablet["code"]]) == 0
    capsys.readouterr()
    assert cli.main(["pair", place, "--code", tablet["code"]]) == 1
    output = capsys.readouterr().err
    assert "has been paired with this computer as tablet" in output
    assert "not paired" not in output
    assert output.count("potluck agent pair") == 1
    assert cli.main(["forget", "tablet"]) == 0
    assert cli.main(["pair", place, "--code", tablet["code"]]) == 1
    output = capsys.readouterr().err
    assert output.count("potluck agent pair") == 1


@pytest.mark.long
def test_a_device_that_is_not_paired_is_shown_as_such(tablet, capsys):
    assert cli.main(["devices", f"127.0.0.1:{tablet['port']}"]) == 0
    assert "not paired" in capsys.readouterr().out


def test_pairing_without_anybody_to_ask_says_so(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - closed with the process
    assert cli.main(["pair", "127.0.0.1:1"]) == 1
    assert "--code" in capsys.readouterr().err


@pytest.mark.long
def test_devices_and_pair_work_beside_an_open_notebook(tablet, state, capsys):
    place = f"127.0.0.1:{tablet['port']}"
    script = (
        "import sys, potluck; home = potluck.Home(); print('open', flush=True); sys.stdin.read()"
    )
    line = [sys.executable, "-c", script]
    notebook = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert notebook.stdout.readline() == "open\n"
        assert cli.main(["devices", place]) == 0
        assert "not paired" in capsys.readouterr().out
        assert cli.main(["pair", place, "--code", tablet["code"]]) == 0
        assert "Paired with tablet" in capsys.readouterr().out
        assert cli.main(["devices", place]) == 0
        shown = capsys.readouterr().out
        assert f"process {notebook.pid}" in shown
        assert "tablet  paired" in " ".join(shown.split("\n"))
    finally:
        notebook.communicate()
    assert cli.main(["devices", place]) == 0
    assert "ready" in capsys.readouterr().out


def test_peers_shows_fingerprints_and_forget_removes(capsys):
    keyring.Keyring().remember(
        keyring.KnownDevice(
            name="phone", key=KEY, addresses=(Address(host="192.168.1.7", port=47600),)
        )
    )
    assert cli.main(["peers"]) == 0
    shown = capsys.readouterr().out
    assert "192.168.1.7:47600" in shown
    assert "this computer's own fingerprint" in shown
    assert cli.main(["forget", "phone"]) == 0
    assert keyring.Keyring().devices() == ()


def test_forgetting_a_stranger_is_an_error_that_names_who_is_known(capsys):
    assert cli.main(["forget", "nobody"]) == 1
    assert "nobody" in capsys.readouterr().err


VERSIONS = [
    ({"pyzmq": "27.3.0", "torch": "2.13"}, "pyzmq 27.3.0", doctor.GOOD),
    ({"pyzmq": "26.9"}, "encrypts slowly", doctor.HINT),
    ({"pyzmq": "27.3.0"}, "torch is not installed", doctor.HINT),
]


@pytest.mark.parametrize(("installed", "words", "level"), VERSIONS)
def test_doctor_judges_packages(installed, words, level):
    findings = list(doctor.packages(installed.get))
    found = next(finding for finding in findings if words in finding.what)
    assert found.level == level
    assert bool(found.remedy) == (level != doctor.GOOD)


def test_doctor_tells_whether_a_device_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()[:2]
        assert doctor.reach("phone", (place,), announced=True).level == doctor.GOOD
    announced, known = (doctor.reach("phone", (place,), announced=flag) for flag in (True, False))
    assert (announced.level, known.level) == (doctor.BAD, doctor.HINT)
    assert "firewall" in announced.remedy
    assert f"ports {place[1]} to {place[1] + 3} " in announced.remedy
    assert "no address is known" in doctor.reach("phone", (), announced=False).what


def test_doctor_names_a_corrupt_file_as_a_problem(state):
    state.mkdir()
    (state / "devices.json").write_text("{")
    (finding,) = doctor.keys()
    assert finding.level == doctor.BAD
    assert "devices.json" in finding.what


def test_doctor_prints_no_control_characters():
    assert "\x1b" not in doctor.show(
        doctor.Checkup(level=doctor.BAD, what="pho\x1b[2Jne", remedy="\x1b")
    )


@pytest.mark.parametrize("missing", ["", "network", "files", "reading"])
def test_doctor_says_which_bounds_a_worker_has(missing):
    bounds = dict.fromkeys(("network", "reading", "files"), "limited")
    if missing:
        bounds[missing] = "not limited: nobody knows why"
    found = doctor.bounded("pc", {"bounds": bounds})
    assert found.level == (doctor.HINT if missing else doctor.GOOD)
    assert (f"{missing} not limited: nobody knows why" in found.what) is bool(missing)
    assert doctor.bounded("pc", {}).level == doctor.HINT


def test_doctor_tells_a_devices_rules_and_why_it_takes_nothing_new():
    rules = {"rules": ["only on mains", "at most 80 °C"]}
    (well,) = doctor.available("pc", rules)
    assert (well.level, "only on mains, at most 80 °C" in well.what) == (doctor.GOOD, True)
    (away,) = doctor.available("pc", {**rules, "leaving": "it runs on its battery"})
    assert (away.level, "it runs on its battery" in away.what) == (doctor.HINT, True)
    assert "only on mains" in away.remedy
    assert list(doctor.available("pc", {"rules": [], "leaving": ""})) == []


def test_doctor_tells_what_a_device_computes_on_and_what_it_left_out():
    rows = [
        row("i5", "cpu", threads=4, reason="fastest of 1, 4, 8"),
        row("CUDA", "cuda", used=False, reason="its trial crashed"),
    ]
    (found,) = doctor.computing("pc", {"processors": rows, "cores": 8})
    assert found.level == doctor.GOOD
    assert doctor.show(found).splitlines() == [
        "ok       pc computes on i5 (cpu): 4 of 8 threads: fastest of 1, 4, 8",
        "         CUDA (cuda) is left out: its trial crashed",
    ]
    assert list(doctor.computing("old", {"processors": []})) == []


def test_the_table_of_devices_tells_what_they_compute_on_where_any_says_so():
    stated = {"processors": [row("i5", "cpu", threads=4)]}
    known, older = (
        Member(name=name, session=SimpleNamespace(capability=capability))
        for name, capability in (("pc", stated), ("old", {}))
    )
    table = tables.members([known, older])
    assert table.columns[-1] == "computes on"
    assert [line[-1] for line in table.rows] == ["4 threads", ""]
    assert "computes on" not in tables.members([older]).columns


def test_doctor_tells_how_a_device_knows_its_power_or_why_not():
    rapl = {"name": "rapl", "source": "", "reason": "energy_uj is readable by root only"}
    nvml = {"name": "nvml", "source": "measured", "reason": ""}
    assert doctor.metered("pc", {"meters": [rapl, nvml]}).what == "pc measures its power: nvml"
    found = doctor.metered("pc", {"meters": [rapl]})
    assert found.level == doctor.HINT
    assert "plans do not know its energy" in found.what
    assert found.remedy.startswith("rapl: energy_uj is readable by root only; or give its watts")
    checkup = doctor.metered(
        "pc", {"meters": [rapl], "power": {"idle_w": 2, "busy_w": 8, "radio_w": 1}}
    )
    assert "modelled from the watts that it was given" in checkup.what


@pytest.mark.parametrize(
    "arguments",
    [["devices", "127.0.0.1:1"], ["peers"], ["pair", "127.0.0.1:1", "--code", "12345678"]],
)
def test_a_state_folder_of_another_user_is_named_in_one_line(arguments, state, capsys, monkeypatch):
    def is_there(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(keyring, "is_there", is_there)
    assert cli.main(arguments) == 1
    output = capsys.readouterr().err
    assert str(state) in output
    assert "Permission denied" in output
    assert output.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("torch", ["demo"]),
        ("torch", ["plan", "share", "robot-indoors", "vgg19"]),
        ("transformers", ["plan", "share", "robot-indoors", "bert-base"]),
        ("torch", ["bench", "interpreter"]),
    ],
)
def test_what_a_light_install_lacks_is_told_with_what_to_install(package, arguments, tmp_path):
    """Each command in a process of its own, in which the package cannot be found, as where it was
    never installed.
    """
    block = (
        f"import sys; sys.modules[{package!r}] = None; from potluck import cli; "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    line = [sys.executable, "-c", block, *arguments]
    answer = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert answer.returncode == 1, answer.stdout
    assert f"{package}" in answer.stderr
    assert "pip install" in answer.stderr
    assert "Traceback" not in answer.stderr
