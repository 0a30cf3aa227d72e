"""Making a home: addresses, labs and discovery; the agents are real."""

import os
import subprocess
import sys
import uuid

import pytest

import potluck
from potluck.discover.addresses import parse_address
from potluck.errors import EmptyHome, HomeError, UserError
from potluck.sessions.agent_specs import DEMO, Spec, specs_of
from potluck.sessions.events import Address
from potluck.sessions.local_agents import sweep

LIGHT = ("onnxruntime",)  # is there sooner than torch


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("192.168.1.7", "192.168.1.7", 47600),
        ("jetson.local:5000", "jetson.local", 5000),
        ("[fe80::1]:5000", "fe80::1", 5000),
        ("[fe80::1]", "fe80::1", 47600),
        ("fe80::1", "fe80::1", 47600),
    ],
)
def test_addresses_are_read(text, host, port):
    assert parse_address(text) == Address(host=host, port=port)


@pytest.mark.parametrize(
    "text", ["", ":5000", "a:b", "a:0", "a:65534", "[]:1", "jetson:" + "9" * 5000]
)
def test_other_addresses_are_refused(text):
    with pytest.raises(UserError, match="not an address"):
        parse_address(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Spec(name="Big Laptop"),
        lambda: Spec(name="home"),
        lambda: Spec(name="a", slowdown=0.5),
        lambda: Spec(name="a", power=(5.0, 1.0, 0.0)),
        lambda: specs_of("no-such-lab"),
        lambda: specs_of([]),
        lambda: specs_of([Spec(name="a"), Spec(name="a")]),
        lambda: potluck.Home.local(0),
    ],
)
def test_impossible_labs_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_the_demo_lab_has_four_unequal_devices():
    specs = specs_of("demo")
    assert specs == DEMO
    assert len({(spec.slowdown, spec.memory) for spec in specs}) == 4


@pytest.mark.long
def test_a_lab_emulates_what_its_specs_say():
    spec = Spec(
        name="snail",
        slowdown=3,
        link_rate="10 Mbit/s",
        memory="64 MiB",
        power=(1.0, 5.0, 0.5),
        backends=LIGHT,
    )
    with potluck.Home.lab([spec]) as home:
        capability = home.devices["snail"].capability
        assert capability["memory_bytes"] == 64 * 2**20
        assert capability["emulated"]["slowdown"] == 3
        assert capability["power"] == {"idle_w": 1.0, "busy_w": 5.0, "radio_w": 0.5}
        assert home.network.bandwidth("snail", "home") == pytest.approx(1.25e6)
        assert home.network.bandwidth("home", "snail") > 1e8
        assert "snail" in repr(home)
        with pytest.raises(HomeError, match="paired already"):
            home.pair("snail", "12345678")
    assert repr(home) == "<Home, closed>"


def test_devices_are_found_paired_and_remembered(tmp_path):
    """mDNS on this machine, the code that the device shows, and a second visit without any of
    it.
    """
    from potluck.sessions.local_agents import LocalAgents

    name = f"found-{uuid.uuid4().hex[:8]}"  # others on this network may run this test, too
    agents = LocalAgents([Spec(name=name, backends=LIGHT)], None, announce=True, extra=["--pair"])
    try:
        with potluck.Home.discover(
            30.0, state=tmp_path, enough=lambda found: name in found
        ) as home:
            if name not in home.devices:
                pytest.skip("multicast does not work on this machine")
            assert home.devices[name].status == "not paired"
            with pytest.raises(potluck.errors.PairingError, match=r"wrong-code.*2 tries are left"):
                home.pair(name, "00000000" if agents.agents[0].code != "00000000" else "11111111")
            member = home.pair(name, agents.agents[0].code)
            assert member.status == "ready"
            assert member.key == agents.agents[0].key
            with pytest.raises(potluck.errors.PairingError, match="closed"):
                home.pair(name, agents.agents[0].code)
        with potluck.Home(peers=[str(member.addresses[0])], state=tmp_path) as again:
            assert again.devices[name].status == "ready"
            again.forget(name)
            assert not again.devices
    finally:
        agents.close()


def test_an_empty_home_says_what_to_try(tmp_path, monkeypatch):
    # Others on this network may well announce themselves: here nobody shall be heard.
    monkeypatch.setattr("potluck.home.browse", lambda timeout_s, enough: {})
    with pytest.raises(EmptyHome, match="doctor"):
        potluck.Home.discover(0.2, state=tmp_path)


def test_what_a_killed_script_left_is_swept_away_and_nothing_else(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = (f"potluck-lab-{gone.pid}-x", f"potluck-lab-{os.getpid()}-y", "potluck-lab")
    left, own, other = (tmp_path / name for name in names)
    for directory in (left, own, other):
        directory.mkdir()
        (directory / "file").write_text("x")
    for odd in ("9" * 200, "0", "-1", "1e9", "\u0663" * 30, str(2**31), str(2**63), ""):
        (tmp_path / f"potluck-lab-{odd}-x").mkdir()  # by anybody who may write there
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / f"potluck-lab-{gone.pid}-pipe")
    sweep(tmp_path)
    assert [directory.exists() for directory in (left, own, other)] == [False, True, True]
