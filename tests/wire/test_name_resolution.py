"""Names of hosts: who is asked for which, how many at once, and which address is taken."""

import socket
from functools import partial

import pytest

from potluck_wire.name_resolution import MOST_KEPT, UNKNOWN, Resolver, resolve


class Threads:
    """Threads that run when they are told to."""

    def __init__(self):
        self.begun = []

    def __call__(self, *, target, args, name, daemon):
        self.work = partial(target, *args)
        assert daemon
        return self

    def start(self):
        self.begun.append(self.work)

    def run(self):
        begun, self.begun = self.begun, []
        for work in begun:
            work()


def test_a_name_takes_one_thread_however_often_it_is_asked_for():
    hosts, threads = [], Threads()
    resolver = Resolver(lambda host: hosts.append(host) or "127.0.0.1", threads)
    assert [resolver.address("jetson.local") for _ in range(5)] == [None] * 5
    threads.run()
    assert resolver.address("jetson.local") == "127.0.0.1"
    assert hosts == ["jetson.local"]


def test_an_answer_is_given_once_and_then_asked_for_anew():
    threads, addresses = Threads(), iter(["192.168.1.7", UNKNOWN, "192.168.1.8"])
    resolver, found = Resolver(lambda host: next(addresses), threads), []
    for _ in range(3):
        assert resolver.address("jetson.local") is None
        threads.run()
        found.append(resolver.address("jetson.local"))
    assert found == ["192.168.1.7", UNKNOWN, "192.168.1.8"]


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_others_wait_until_a_thread_is_free(at_once):
    threads = Threads()
    resolver = Resolver(lambda host: "127.0.0.1", threads, at_once)
    unresolved, rounds = [f"d{i}.local" for i in range(7)], 0
    while unresolved:
        unresolved = [name for name in unresolved if resolver.address(name) is None]
        assert len(threads.begun) == min(at_once, len(unresolved))
        threads.run()
        rounds += 1
    assert rounds == -(-7 // at_once) + 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_needs_nobody(host):
    threads = Threads()
    assert Resolver(lambda host: UNKNOWN, threads).address(host) == host
    assert threads.begun == []


def answers(*addresses):
    return lambda host, port: [(0, 0, 0, "", (address, 0)) for address in addresses]


@pytest.mark.parametrize(
    ("addresses", "taken"),
    [
        (["fe80::1", "192.168.1.7", "192.168.1.8"], "192.168.1.7"),
        (["192.168.1.7", "fe80::1"], "192.168.1.7"),
        (["fe80::1", "fe80::2"], "fe80::1"),
        ([], UNKNOWN),
    ],
)
def test_a_host_with_addresses_of_both_kinds_is_reached_by_ipv4(addresses, taken):
    assert resolve(answers(*addresses), "jetson.local") == taken


def test_this_host_is_found():
    assert resolve(socket.getaddrinfo, "localhost") == "127.0.0.1"


@pytest.mark.parametrize("host", ["nobody.invalid", "x" * 200, "a..b", "a\0b"])
def test_a_name_that_cannot_be_resolved_raises_nothing(host):
    assert resolve(socket.getaddrinfo, host) == UNKNOWN


def test_answers_that_nobody_fetches_are_not_kept_for_ever():
    hosts, threads = [], Threads()
    resolver = Resolver(lambda host: hosts.append(host) or "127.0.0.1", threads)
    for number in range(3 * MOST_KEPT):
        resolver.address(f"host-{number}")
        threads.run()
    for number in range(3 * MOST_KEPT):
        resolver.address(f"host-{number}")  # those that were kept are not asked for again
    assert len(hosts) <= 3 * MOST_KEPT
    threads.run()
    assert 2 * 3 * MOST_KEPT - MOST_KEPT - 1 <= len(hosts) < 2 * 3 * MOST_KEPT
