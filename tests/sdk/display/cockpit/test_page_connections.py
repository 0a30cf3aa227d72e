"""Whoever has not shown the token takes little of the process that serves the page, however many
they are and however slowly they say it.
"""

import http.client
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from potluck.display.cockpit.page_connections import MOST_CONNECTIONS, BoundedPageServer
from potluck.display.cockpit.page_files import MOST_STREAMS
from potluck.display.cockpit.server import PageRequests, PageServer
from potluck.serve.gateway.connection_limit import ConnectionLimit

LONG_S = 60
SAID = {
    "nothing": b"",
    "half a line": b"GET /",
    "half a head": b"GET / HTTP/1.1\r\nHost: x\r\n",
    "a body that does not come": b"POST /x/ask HTTP/1.1\r\nContent-Length: 60000\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x00\xff" * 40,
}


class Shown:
    """Stands for what looks at a home."""

    def __init__(self):
        self.views = []

    def show(self, view):
        self.views.append(view)
        view(b"a frame")
        return lambda: None

    def clicked(self, content, *, may_act):
        pass


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(PageRequests, "timeout", None)  # silence alone ends nothing
    server = PageServer(Shown())
    yield server
    server.close()


def strangers(port, data, n):
    found = []
    for _ in range(n):
        found.append(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))
        found[-1].sendall(data)
    return found


def status_of(page):
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=LONG_S)
    connection.request("GET", f"/{page.token}/")
    found = connection.getresponse().status
    connection.close()
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("data", SAID.values(), ids=SAID)
def test_however_many_strangers_there_are_few_stay_and_the_owner_is_answered(page, data):
    connections = strangers(page.port, data, 3 * MOST_CONNECTIONS)
    assert status_of(page) == 200
    assert all(map(_is_over, connections[: 2 * MOST_CONNECTIONS]))
    for each in connections:
        each.close()


def _is_over(connection):
    """Waits for its end."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_stream_stays_whoever_comes(page):
    """Whoever has shown the token makes room for nobody."""
    reader = http.client.HTTPConnection("127.0.0.1", page.port, timeout=LONG_S)
    reader.request("GET", f"/{page.token}/frames")
    answer = reader.getresponse()
    assert answer.read(4 + len(b"a frame"))[4:] == b"a frame"
    connections = strangers(page.port, b"GET /", 2 * MOST_CONNECTIONS)
    assert status_of(page) == 200
    page.watching.views[0](b"another")
    assert answer.read(4 + len(b"another"))[4:] == b"another"
    reader.close()
    for each in connections:
        each.close()


def test_readers_that_leave_at_once_take_no_place_of_a_stream(page):
    """Their connection may be gone before anything is answered, and nothing new may be to show."""
    head = f"GET /{page.token}/frames HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode()
    for _ in range(8 * MOST_STREAMS):
        (reader,) = strangers(page.port, head, 1)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.close()
    for _ in range(MOST_STREAMS):
        assert page.streams.acquire(timeout=LONG_S)


def test_who_asks_nothing_in_time_has_to_leave():
    server = BoundedPageServer(
        ("127.0.0.1", 0), BaseHTTPRequestHandler, ConnectionLimit(8, 8, head_s=0.0)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (stranger,) = strangers(server.server_address[1], b"GET /", 1)
    assert _is_over(stranger)  # and nothing was said but half a line
    server.shutdown()
    server.server_close()


def test_connections_that_break_fill_nobodys_screen(page, capfd):
    for data in SAID.values():
        for each in strangers(page.port, data, 4):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            each.close()  # with a reset
    assert status_of(page) == 200
    page.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 10, "-1", "+5", "1e3", "", "\u00b2"])
def test_a_length_that_is_none_is_refused(page, length):
    with socket.create_connection(("127.0.0.1", page.port), timeout=LONG_S) as connection:
        head = f"POST /{page.token}/ask HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode("latin-1"))
        assert connection.recv(4096).split()[1] == b"413"
