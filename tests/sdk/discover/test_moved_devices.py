"""Addresses are given, and devices are elsewhere than when they were seen last: keys decide."""

from contextlib import ExitStack

import pytest
from tests.agent.agents import agent

import potluck
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.errors import IdentityChanged
from potluck.sessions.events import Address


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The keys of this notebook."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def agents(tmp_path_factory, state):
    """Two that trust this notebook."""
    trust = ("--trust", f"{Keyring(state).identity()[0]}:ada")
    with ExitStack() as stack:
        yield [
            stack.enter_context(agent(tmp_path_factory.mktemp("agent"), *trust)) for _ in range(2)
        ]


def place(agent):
    return Address(host="127.0.0.1", port=agent.port)


def opened(state, agents, known):
    """A home at the addresses of these agents, to which these were known before."""
    ring = Keyring(state)
    for device in ring.devices():
        ring.forget(device.name)
    for device in known:
        ring.remember(device)
    return potluck.Home(peers=[str(place(each)) for each in agents], state=state)


def test_two_that_changed_places_are_both_known(state, agents):
    """As when a router gives addresses anew."""
    one, two = agents
    known = [
        KnownDevice(name="one", key=one.key, addresses=(place(two),)),
        KnownDevice(name="two", key=two.key, addresses=(place(one),)),
    ]
    with opened(state, agents, known) as home:
        assert {name: home.devices[name].key for name in home.devices.ready} == {
            "one": one.key,
            "two": two.key,
        }


@pytest.mark.parametrize("newer_first", [False, True])
def test_one_that_was_paired_again_under_another_key_is_known_by_that(state, agents, newer_first):
    one, stranger = agents[0], Keyring(state).identity()[0]
    known = [
        KnownDevice(name="jetson", key=stranger, addresses=(place(one),)),
        KnownDevice(name="jetson", key=one.key, addresses=(place(one),)),
    ]
    with opened(state, agents[:1], known[::-1] if newer_first else known) as home:
        assert [home.devices[name].key for name in home.devices.ready] == [one.key]


def test_whoever_has_no_key_of_a_paired_device_is_not_talked_to(state, agents):
    one, stranger = agents[0], Keyring(state).identity()[0]
    known = [KnownDevice(name="jetson", key=stranger, addresses=(place(one),))]
    with opened(state, agents[:1], known) as home:
        assert [*home.devices] == ["jetson"]
        assert isinstance(home.devices["jetson"].error, IdentityChanged)
