"""The socket of the entrance lets in whom the limit lets in, and needs no descriptor to refuse."""

import os
import socket
import sys
from contextlib import ExitStack, suppress

import pytest

from potluck.serve.gateway.connection_limit import ConnectionLimit
from potluck.serve.gateway.listener import MAX_LEAVING, Listener


def listening(limit):
    bound = socket.create_server(("127.0.0.1", 0))
    opened = Listener(bound, limit)
    opened.setblocking(False)
    return opened


def accepted(listener):
    """All who are there."""
    found = []
    while True:
        try:
            found.append(listener.accept()[0])
        except BlockingIOError:
            return found


def client(listener):
    return socket.create_connection(listener.getsockname(), 60)


def test_the_longest_without_a_request_is_disconnected():
    with listening(ConnectionLimit(max_open=2)) as listener:
        clients, guests = [], []
        for _ in range(3):
            clients.append(client(listener))
            guests += accepted(listener)
        assert clients[0].recv(1) == b""
        guests[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        for each in (*clients, *guests):
            each.close()


def test_who_is_closed_makes_room():
    limit = ConnectionLimit(max_open=1)
    with listening(limit) as listener:
        for _ in range(5):
            with client(listener):
                (guest,) = accepted(listener)
                limit.ask(guest.getpeername())
                guest.close()
                assert len(limit) == 0


def test_when_all_have_asked_the_next_one_is_closed_at_once():
    limit = ConnectionLimit(max_open=1)
    with listening(limit) as listener, client(listener):
        (guest,) = accepted(listener)
        limit.ask(guest.getpeername())
        with client(listener) as late:
            assert accepted(listener) == []
            assert late.recv(1) == b""
        guest.close()


def test_who_comes_faster_than_others_are_closed_takes_no_more_descriptors():
    """Half a handshake of TLS each: 8,000 of them in 20 s had 8,000 descriptors and 2 GB."""
    with listening(ConnectionLimit(max_open=2)) as listener, ExitStack() as stack:
        guests = []
        for _ in range(3 * MAX_LEAVING):
            stack.enter_context(client(listener))
            guests += accepted(listener)
        assert len(guests) == 2 + MAX_LEAVING
        for _ in range(MAX_LEAVING):  # each that is closed lets in one that waits
            guests.pop(0).close()
            (late,) = accepted(listener)
            guests.append(late)
        for each in guests:
            each.close()
        guests = accepted(listener)
        assert len(guests) == 2 * MAX_LEAVING - 2 - MAX_LEAVING
        for each in guests:
            each.close()


def test_a_sweep_parts_from_who_asks_nothing():
    limit = ConnectionLimit(head_s=-1.0)
    with listening(limit) as listener, client(listener) as silent:
        (guest,) = accepted(listener)
        listener.connections.sweep()
        assert silent.recv(1) == b""
        guest.close()
        assert len(limit) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of descriptors there")
def test_without_a_descriptor_left_callers_are_turned_away_and_the_next_ones_come_in():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listening(ConnectionLimit()) as listener:
        callers = [client(listener) for _ in range(5)]
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            assert accepted(listener) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in callers:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
            each.close()
        with client(listener):
            (guest,) = accepted(listener)
            guest.close()


def test_whoever_is_let_in_gets_small_answers_at_once():
    with listening(ConnectionLimit()) as listener, client(listener):
        (guest,) = accepted(listener)
        with guest:
            assert guest.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
