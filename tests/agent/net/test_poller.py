"""One wait over sockets and descriptors misses nothing, whatever was sent or left unread in
between.
"""

import os

import pytest
import zmq
from tests.timeouts import TIMEOUT_S

from potluck_agent.net.poller import READ, WRITE, Poller


@pytest.fixture
def pair():
    context = zmq.Context()
    ours, theirs = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    theirs.connect(f"tcp://127.0.0.1:{ours.bind_to_random_port('tcp://127.0.0.1')}")
    sources = Poller()
    sources.register(ours)
    yield sources, ours, theirs
    sources.unregister(ours)
    sources.close()
    context.destroy(0)


def until_ready(sources):
    """The first who has something to say; a descriptor may move for reasons of its own before."""
    while not (ready := sources.wait(TIMEOUT_S)):
        pass
    return ready


def test_a_socket_that_was_asked_in_between_is_ready_all_the_same(pair):
    sources, ours, theirs = pair
    assert sources.is_empty(ours)
    sources.wait(0)
    theirs.send(b"x")
    while sources.is_empty(ours):
        pass
    assert until_ready(sources) == {ours}
    assert ours.recv() == b"x"
    assert sources.is_empty(ours)


def test_a_socket_is_ready_until_all_of_it_is_read(pair):
    sources, ours, theirs = pair
    for number in range(3):
        theirs.send(b"%d" % number)
    for number in range(3):
        assert until_ready(sources) == {ours}
        assert ours.recv() == b"%d" % number
    assert sources.wait(0) == set()


def test_what_comes_while_something_is_sent_is_seen(pair):
    sources, ours, theirs = pair
    for _ in range(50):
        theirs.send(b"question")
        sources.use(ours)
        # takes note of the question, so that the descriptor is quiet again
        ours.send(b"by the way")
        assert theirs.recv() == b"by the way"
        assert until_ready(sources) == {ours}
        assert ours.recv() == b"question"


def test_descriptors_are_waited_for_beside_sockets(pair):
    sources, ours, theirs = pair
    reading, writing = os.pipe()
    try:
        sources.register(reading)
        os.write(writing, b"x")
        assert until_ready(sources) == {reading}
        theirs.send(b"too")
        while sources.wait(TIMEOUT_S) != {reading, ours}:
            pass
        sources.unregister(reading)
        sources.register(writing)
        sources.watch(writing, READ | WRITE)
        assert writing in sources.wait(TIMEOUT_S)
        sources.unregister(writing)
        assert until_ready(sources) == {ours}
    finally:
        os.close(reading)
        os.close(writing)
