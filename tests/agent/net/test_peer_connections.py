"""Links to other devices: names of hosts are resolved elsewhere, a few at once, and never where
pulses are answered.
"""

import socket
import threading
import time

import pytest
import zmq
from tests.agent.core.core_driver import MEMBER_KEY, OTHER_KEY
from tests.timeouts import TIMEOUT_S

from potluck_agent.cli.descriptors import LEAST_NOFILE
from potluck_agent.core.events import LinkReset, MemberLost, PeerDevice
from potluck_agent.core.members import MAX_LINKS
from potluck_agent.keys import Identity
from potluck_agent.net.descriptor_shares import OWN, most_links, most_strangers
from potluck_agent.net.peer_connections import (
    ASK_AGAIN_S,
    DESCRIPTORS_EACH,
    LOST_S,
    MAX_SOCKETS,
    NAMES_AT_ONCE,
    NEW_AT_ONCE,
    NEXT_S,
    SOCKETS_EACH,
    PeerConnections,
)
from potluck_agent.net.poller import Poller
from potluck_agent.net.socket_memory import MAX_STRANGERS, SocketMemory
from potluck_wire.descriptors import NOFILE
from potluck_wire.limits import LINGER_MS
from potluck_wire.name_resolution import UNKNOWN, Resolver


class Names:
    """A name server that answers when it is told to, and writes down who asked, and in which
    thread.
    """

    def __init__(self, **known):
        self.known, self.may_answer = known, threading.Event()
        self.asked, self.threads = [], set()

    def __call__(self, host):
        self.asked.append(host)
        self.threads.add(threading.current_thread())
        assert self.may_answer.wait(TIMEOUT_S)
        return self.known.get(host, UNKNOWN)

    def answer(self):
        self.may_answer.set()
        for thread in tuple(self.threads):
            thread.join(TIMEOUT_S)


@pytest.fixture
def open_links():
    context = zmq.Context()
    sources = Poller()
    opened = []
    public, secret = (part.decode() for part in zmq.curve_keypair())

    def make(names, max_sockets=1000):
        events = []
        links = PeerConnections(
            context,
            sources,
            SocketMemory(),
            Identity(public=public, secret=secret),
            events.append,
            pytest.fail,
            names and Resolver(names, threading.Thread, NAMES_AT_ONCE),
        )
        context.set(zmq.MAX_SOCKETS, max_sockets)
        opened.append(links)
        return links, events

    yield make
    for links in opened:
        links.close()
    sources.close()
    context.destroy(LINGER_MS)


def endpoints(links, *members):
    return [
        link.socket.last_endpoint if link.socket is not None else None
        for link in (links.get(member.key) for member in members)
    ]


def test_a_name_is_resolved_away_from_the_loop_and_then_connected(open_links):
    names = Names(**{"phone.local": "127.0.0.1"})
    links, events = open_links(names)
    phone = PeerDevice(name="phone", key=MEMBER_KEY, address="phone.local:47600")
    links.set((phone,))  # comes back though nobody answers
    links.tick(1.0)
    assert endpoints(links, phone) == [None]
    assert MEMBER_KEY in links  # the other device may come in all the same
    names.answer()
    links.tick(2.0)
    assert endpoints(links, phone) == [b"tcp://127.0.0.1:47602"]
    # what was for it meanwhile goes out again
    assert events == [LinkReset(key=MEMBER_KEY, incoming=False)]
    assert threading.current_thread() not in names.threads


def test_an_address_needs_nobody(open_links):
    names = Names()
    links, _ = open_links(names)
    members = (
        PeerDevice(name="a", key=MEMBER_KEY, address="127.0.0.1:47600"),
        PeerDevice(name="b", key=OTHER_KEY, address="[::1]:47604"),
    )
    links.set(members)
    assert endpoints(links, *members) == [b"tcp://127.0.0.1:47602", b"tcp://[::1]:47606"]
    assert names.asked == []


def test_a_device_for_which_no_socket_is_left_waits_for_one(open_links):
    """Sockets and descriptors are bounded, and strangers and notebooks can use them up."""
    links, _ = open_links(Names(), max_sockets=3)  # one device: its own, both ends of its monitor
    first, second = (
        PeerDevice(name=name, key=key, address="127.0.0.1:47600")
        for name, key in (("a", MEMBER_KEY), ("b", OTHER_KEY))
    )
    links.set((first, second))
    assert sum(found is not None for found in endpoints(links, first, second)) == 1
    links.tick(1.0)
    links.set((second,))
    now_s = 1.0
    while endpoints(links, second) == [None]:  # ZeroMQ gives them back in its own time
        now_s += ASK_AGAIN_S
        links.tick(now_s)


def test_as_many_devices_have_links_as_sockets_and_descriptors_are_for(open_links):
    """Those of all notebooks that compute here, and strangers and their own come in besides."""
    n_links = 7
    links, _ = open_links(Names(), max_sockets=n_links * SOCKETS_EACH)
    members = [
        PeerDevice(name=f"d{i}", key=f"{i:040}", address="127.0.0.1:47600")
        for i in range(n_links + 1)
    ]
    links.set(tuple(members))
    assert endpoints(links, *members).count(None) == 1
    assert MAX_LINKS * SOCKETS_EACH < MAX_SOCKETS
    assert (most_links(NOFILE), most_strangers(NOFILE)) == (MAX_LINKS, MAX_STRANGERS)


@pytest.mark.parametrize("n_allowed", [LEAST_NOFILE, 200, 256, 500, 1024, 2048, NOFILE])
def test_links_and_strangers_leave_descriptors_for_the_agent_itself(n_allowed):
    """The system may permit fewer than are asked for."""
    n_taken = most_links(n_allowed) * (DESCRIPTORS_EACH + 1) + 3 * most_strangers(n_allowed)
    assert n_taken < n_allowed - min(OWN, n_allowed // 2)
    assert min(most_links(n_allowed), most_strangers(n_allowed)) >= 4


def test_a_roster_of_names_takes_a_few_threads_and_no_more(open_links):
    names = Names()
    links, _ = open_links(names)
    links.set(
        tuple(
            PeerDevice(name=f"d{i}", key=f"{i:040d}", address=f"d{i}.local:47600")
            for i in range(64)
        )
    )
    for now_s in range(5):
        links.tick(float(now_s))
    assert len(names.threads) <= NAMES_AT_ONCE
    names.answer()


def test_a_name_that_nobody_knows_is_asked_for_again_later(open_links):
    names = Names()
    names.may_answer.set()
    links, events = open_links(names)
    links.set((PeerDevice(name="phone", key=MEMBER_KEY, address="phone.local:47600"),))
    names.answer()
    links.tick(100.0)  # the answer is fetched: unknown
    links.tick(100.0 + ASK_AGAIN_S / 2)
    assert names.asked == ["phone.local"]
    links.tick(100.0 + ASK_AGAIN_S)
    names.answer()
    assert names.asked == ["phone.local"] * 2
    assert not any(isinstance(event, LinkReset) for event in events)


def test_a_device_with_addresses_of_both_kinds_is_reached_where_it_listens(open_links, monkeypatch):
    found = [(0, 0, 0, "", (address, 0)) for address in ("fe80::7", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    links, _ = open_links(None)  # asks as an agent does
    phone = PeerDevice(name="phone", key=MEMBER_KEY, address="phone.local:47600")
    links.set((phone,))
    for thread in threading.enumerate():
        if thread.name == "resolve phone.local":
            thread.join(TIMEOUT_S)
    links.tick(1.0)
    assert endpoints(links, phone) == [b"tcp://127.0.0.1:47602"]


def test_a_device_is_looked_for_at_all_addresses_that_are_told_of_it(open_links):
    links, events = open_links(Names())
    told = ("127.0.0.1:47600", "127.0.0.1:47610", "127.0.0.1:47620")
    phone = PeerDevice(name="phone", key=MEMBER_KEY, address=told[0], others=told[1:])
    now_s = time.monotonic()
    links.set((phone,))
    seen = endpoints(links, phone)
    for _ in told:
        now_s += NEXT_S + 1.0
        links.tick(now_s)
        seen += endpoints(links, phone)
    assert seen == [f"tcp://127.0.0.1:{port}".encode() for port in (47602, 47612, 47622, 47602)]
    assert events.count(LinkReset(key=MEMBER_KEY, incoming=False)) == 3
    assert MemberLost(MEMBER_KEY) in events  # however often it was looked for


def test_a_notebook_that_tells_ever_new_addresses_keeps_no_other_ones_device_away(open_links):
    links, events = open_links(Names())
    now_s = time.monotonic()
    for turn in range(20):
        links.set(
            (
                PeerDevice(
                    name="phone",
                    key=MEMBER_KEY,
                    address=f"127.0.0.1:{40000 + turn}",
                    others=("127.0.0.1:47600",),
                ),
            )
        )
        links.tick(now_s + 0.1 * turn)
    assert links.get(MEMBER_KEY).address == "127.0.0.1:47600"
    assert MemberLost(MEMBER_KEY) not in events


def test_where_a_connection_broke_the_next_address_is_tried(open_links):
    """Whoever told of that place may pass bytes on to the device, and cut it as often as it
    likes.
    """
    links, _ = open_links(Names())
    told = ("127.0.0.1:47600", "127.0.0.1:47610")
    links.set((PeerDevice(name="phone", key=MEMBER_KEY, address=told[0], others=told[1:]),))
    link = links.get(MEMBER_KEY)
    link.has_stood = link.broken = True
    links.tick(time.monotonic())
    assert links.get(MEMBER_KEY).address == told[1]


def test_a_device_that_ever_moves_is_given_up_all_the_same(open_links):
    links, events = open_links(Names())
    now_s = time.monotonic()
    for turn in range(20):
        place = f"127.0.0.1:{40000 + turn}"
        links.set((PeerDevice(name="phone", key=MEMBER_KEY, address=place),))
        links.tick(now_s + 0.1 * turn * LOST_S)
    assert MemberLost(MEMBER_KEY) in events


def test_rosters_that_follow_each_other_fast_open_a_bounded_number_of_sockets(open_links):
    links, _ = open_links(Names())
    members = tuple(
        PeerDevice(name=f"d{i}", key=f"{i:040d}", address="127.0.0.1:47600") for i in range(60)
    )
    seen = set()
    for _ in range(10):
        links.set(members)
        seen |= {links.get(m.key).socket for m in members} - {None}
        links.set(())
    assert len(seen) == NEW_AT_ONCE
    links.set(members)
    for now_s in range(1, 5):
        links.tick(float(now_s))
    assert None not in endpoints(links, *members)  # a roster that stays is connected whole
