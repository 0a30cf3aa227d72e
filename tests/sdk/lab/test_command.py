"""`potluck lab up|down|list` as a user types it.

And what is left where somebody is killed: nothing.
"""

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from tests.sdk.lab.homes import interfaces, write_home
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import FileError, UserError
from potluck.lab import registry
from potluck.lab.namespaces import missing
from potluck.sessions.events import Address
from potluck.sessions.local_agents import Started
from potluck_wire.process_identity import identity


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setenv("POTLUCK_RUN", str(folder))
    return folder


def entry(name="tiny", pid=None):
    pid = pid or os.getpid()
    agent = Started(
        name="one", address=Address(host="198.18.0.10", port=47600), key="k" * 40, pid=pid
    )
    return registry.RunningLab(
        name=name,
        home=name,
        time_scale=2.0,
        pid=pid,
        identity=identity(pid),
        public="p" * 40,
        secret="s" * 40,
        agents=(agent,),
    )


def test_labs_that_are_up_are_known_to_this_user_alone(run_folder):
    registry.add(entry())
    assert registry.find("tiny") == entry()
    assert registry.find("other") is None
    assert (run_folder / "tiny.json").stat().st_mode & 0o077 == 0
    with pytest.raises(UserError, match="up already"):
        registry.add(entry())
    with pytest.raises(UserError, match="2 times slower"):
        potluck.Home.lab("tiny", time_scale=5)
    registry.remove(replace(entry(), pid=1))  # another process's of that name
    assert registry.find("tiny") == entry()
    registry.remove(entry())
    assert registry.entries() == ()
    assert list(run_folder.iterdir()) == []


def test_of_two_labs_of_one_name_that_come_up_at_once_one_is_told(run_folder, monkeypatch):
    registry.add(entry())
    # when it looked, the other was not there yet
    monkeypatch.setattr(registry, "find", lambda name: None)
    with pytest.raises(UserError, match="up already"):
        registry.add(replace(entry(), time_scale=3.0))
    assert registry.entries() == (entry(),)
    assert [path.name for path in run_folder.iterdir()] == ["tiny.json"]


def test_what_the_dead_left_is_removed(run_folder):
    registry.add(entry())
    (run_folder / "dead.json").write_text(
        (run_folder / "tiny.json").read_text().replace('"identity": "', '"identity": "1')
    )
    (run_folder / "broken.json").write_text("{")
    assert [found.name for found in registry.entries()] == ["tiny"]
    assert [path.name for path in run_folder.glob("*")] == ["tiny.json"]


def test_a_link_to_nothing_in_place_of_the_folder_is_refused(run_folder, tmp_path):
    run_folder.symlink_to(tmp_path / "nothing")
    with pytest.raises(FileError, match="not this user's own"):
        registry.add(entry())
    with pytest.raises(FileError, match="not this user's own"):
        registry.entries()


def test_a_folder_that_others_can_read_is_refused(run_folder):
    run_folder.mkdir(mode=0o755)
    with pytest.raises(FileError, match="not this user's own"):
        registry.entries()


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "potluck.cli", "lab", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def up(path, *arguments):
    """A lab in a process group of its own, once it says that it is up.

    And the interfaces that came with it.
    """
    before = interfaces()
    process = subprocess.Popen(
        [sys.executable, "-m", "potluck.cli", "lab", "up", str(path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stdout:
        if " is up." in line:
            return process, interfaces() - before
    pytest.fail(f"it did not come up: {process.wait()}")


def all_gone(process, children):
    process.wait(TIMEOUT_S)
    process.stdout.close()
    return psutil.wait_procs(children, TIMEOUT_S)[1] == []


@pytest.mark.long
def test_asking_for_what_is_not_there(run_folder):
    assert command("list").stdout == command("down").stdout == "no lab is up.\n"
    refused = command("down", "nowhere")
    assert (refused.returncode, "no lab called 'nowhere'" in refused.stderr) == (1, True)
    refused = command("up", "smart-hom-2")
    assert (refused.returncode, "smart-home-2" in refused.stderr) == (1, True)


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing() or "possible")
def test_two_labs_at_once_are_listed_joined_and_ended_each_by_itself(run_folder, tmp_path):
    """Both have a device of the same name; one is killed, the other does not feel it."""
    process, came = up(write_home(tmp_path, devices=("one", "two")), "--time-scale", "50")
    other, others_came = up(write_home(tmp_path, name="other", devices=("one",)))
    children, others = (
        psutil.Process(each.pid).children(recursive=True) for each in (process, other)
    )
    assert command("list").stdout.splitlines() == [
        f"other: one (process {other.pid})",
        f"tiny: one, two, 50 times slower (process {process.pid})",
    ]
    assert "up already" in command("up", "tiny").stderr
    other.kill()
    assert all_gone(other, others)
    assert are_gone(others_came)
    former = potluck.Home.lab("tiny")  # as a notebook's cell that is run again leaves it
    with potluck.Home.lab("tiny") as home:
        assert repr(former) == "<Home, closed>"
        assert home.devices.ready == ("one", "two")
        assert home.network.bandwidth("one", "two") == pytest.approx(4e6 / 2 / 50)
    with potluck.Home.lab("tiny") as home:
        assert home.devices.ready == ("one", "two")
    assert command("down").stdout == "tiny is down.\n"
    assert all_gone(process, children)
    assert are_gone(came)
    assert command("list").stdout == "no lab is up.\n"


NO_SPACES = pytest.mark.skipif(bool(missing()), reason=missing() or "possible")


ALL_THAT_LASTS = """
[[events]]
at_s = 0
do = "freeze"
device = "one"
lasts_s = 1000

[[events]]
at_s = 0
do = "flow"
source = "one"
target = "two"
lasts_s = 1000

[[events]]
at_s = 0
do = "leave"
device = "two"
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("links", "number"),
    [
        pytest.param("namespaces", signal.SIGKILL, marks=NO_SPACES),
        pytest.param("namespaces", signal.SIGINT, marks=NO_SPACES),
        pytest.param("relay", signal.SIGKILL),
    ],
)
def test_nothing_is_left_of_what_happened_where_the_parent_is_killed_or_interrupted(
    run_folder, tmp_path, links, number
):
    script = tmp_path / "script.toml"
    script.write_text(ALL_THAT_LASTS)
    process, came = up(
        write_home(tmp_path, devices=("one", "two")), "--script", str(script), "--links", links
    )
    for line in process.stdout:
        if "leave" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert all_gone(process, children)
    assert command("list").stdout == "no lab is up.\n"
    assert links == "relay" or are_gone(came)


def are_gone(came):
    """The kernel takes a namespace back a little after its last process is gone.

    One of them is ours, at least.
    """
    watcher = subprocess.Popen(["ip", "monitor", "link"], stdout=subprocess.PIPE)
    try:
        limit_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < limit_s:  # other labs come and go, too, and each is news
            if came - interfaces():
                return True
            if select.select([watcher.stdout], [], [], 0.5)[0]:
                os.read(watcher.stdout.fileno(), 1 << 16)
    finally:
        watcher.kill()
        watcher.wait()
        watcher.stdout.close()
    return False
