"""The cockpit in a terminal, and a home that another process has open."""

import json
import os
import stat
import subprocess
import sys
from math import inf

import pytest
from rich.console import Console
from tests.sdk.display.cockpit import observations

from potluck.display.cockpit import window
from potluck.display.cockpit.frames import FrameReader, Frames
from potluck.display.cockpit.machine import CockpitMachine, HomeObserved, Planned
from potluck.display.cockpit.server import PageServer
from potluck.display.cockpit.terminal import follow, screen
from potluck.errors import HomeError

BOTH, ALONE = observations.plan("a", "b"), observations.plan("a", planner="single", latency_s=0.9)
HOLDER = """
import sys
from potluck.home import Home
home = Home(state=sys.argv[1])
print(home.window(), flush=True)
sys.stdin.read()
home.close()
"""


def text_of(machine, width=120):
    reader = FrameReader()
    reader.take(Frames().full(machine.state))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(screen(reader, width))
    return captured.get()


@pytest.fixture
def at_work():
    machine = CockpitMachine()
    observation = observations.seen(
        observations.member("a"), observations.gone("b"), run=observations.running(BOTH)
    )
    machine.handle(HomeObserved(observation=observation), 1.0)
    machine.handle(Planned(order=1, plans=(BOTH, ALONE)), 1.1)
    return machine


def test_a_terminal_shows_the_same_numbers(at_work):
    shown = text_of(at_work)
    for words in ("net", "step 3", "500 ms a step", "0-1", "10.0 W est.", "gone", "air", "single"):
        assert words in shown
    assert "b is gone: b: no sign of life." in shown


def test_an_empty_home_is_said_in_words():
    machine = CockpitMachine()
    machine.handle(HomeObserved(observation=observations.seen()), 1.0)
    assert "0 devices, nothing runs" in text_of(machine)


def test_names_are_no_markup_and_no_commands():
    machine = CockpitMachine()
    machine.handle(
        HomeObserved(observation=observations.seen(observations.member("[red]x\x1b[2J"))), 1.0
    )
    shown = text_of(machine)
    assert "[red]x" in shown
    assert "\x1b" not in shown


def test_frames_are_followed_over_the_page(at_work):
    class Still:
        def show(self, view):
            view(Frames().full(at_work.state))
            return lambda: None

    server = PageServer(Still())
    frames = follow(server.url)
    assert next(frames).sections["run"]["model"] == "net"
    frames.close()
    server.close()
    with pytest.raises(HomeError):
        next(follow(server.url))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_shows_less_and_that_readably(at_work, width):
    shown = text_of(at_work, width)
    names = [*at_work.state.sections["devices"]]
    rows = [line for line in shown.splitlines() if line.lstrip().startswith(("●", "○"))]
    assert [row.split()[1] for row in rows] == names  # a line each, and whole
    assert "10.0 W est." in shown
    assert "…" not in shown
    assert ("battery" in shown) == (width >= 100)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_long_name_leaves_room_for_the_figures(width):
    machine = CockpitMachine()
    members = observations.member("x" * 300), observations.member("\U0001f600" * 100)
    machine.handle(HomeObserved(observation=observations.seen(*members)), 1.0)
    assert text_of(machine, width).count("10.0 W est.") == len(members)


def test_one_reader_too_many_is_told_so(at_work):
    server = PageServer(object())
    while server.streams.acquire(blocking=False):  # all that there are
        pass
    with pytest.raises(HomeError, match="nobody else look now"):
        next(follow(server.url))
    server.close()


def test_nobody_is_found_through_no_window(tmp_path):
    with pytest.raises(HomeError, match=r"home\.window"):
        window.find(tmp_path)
    of = {"url": "http://127.0.0.1:1/x/"}
    for document in ({**of, "process": 2**22 + 1}, {**of, "process": inf}, {"url": 5}, []):
        (tmp_path / window.FILE).write_text(json.dumps(document))
        with pytest.raises(HomeError):
            window.find(tmp_path)
    document = {"url": "http://elsewhere.example/", "process": os.getpid()}
    (tmp_path / window.FILE).write_text(json.dumps(document))
    with pytest.raises(HomeError, match="not on this machine"):
        window.find(tmp_path)


@pytest.mark.slow
def test_a_home_of_another_process_is_seen_through_its_window(tmp_path):
    environment = {**os.environ, "POTLUCK_HOME": str(tmp_path)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        url = holder.stdout.readline().strip()
        assert stat.S_IMODE((tmp_path / window.FILE).stat().st_mode) == 0o600
        for options, words in (
            (["top", "--once", "--wait", "0.1"], "nothing runs"),
            (["watch", "--wait", "0.1"], url),
        ):
            seen = subprocess.run(
                [sys.executable, "-m", "potluck", *options],
                capture_output=True,
                text=True,
                env=environment,
                timeout=200,
            )
            assert words in seen.stdout, seen.stderr
    finally:
        holder.communicate(timeout=60)
    assert not (tmp_path / window.FILE).exists()
