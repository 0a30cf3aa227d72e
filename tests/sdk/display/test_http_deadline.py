"""Who asks a server that sends a byte now and then is told that it does not answer."""

import socket
import threading

import pytest

from potluck.commands import serve
from potluck.display.cockpit import terminal
from potluck.errors import HomeError, UserError

SOON_S = 0.5
BEGINNINGS = {
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"a"),
    "a body without a length": (b"HTTP/1.1 200 OK\r\n\r\n", b"\x01"),
    "to be continued": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a status": (b"", b"H"),
    "a header": (b"HTTP/1.1 200 OK\r\n", b"a"),
    "a frame": (b"HTTP/1.1 200 OK\r\n\r\n\x00\x00\x10\x00", b"a"),
}


@pytest.fixture(params=BEGINNINGS)
def port(request):
    """Of a server that never ends what it begins."""
    first, then = BEGINNINGS[request.param]
    stop = threading.Event()

    def trickle(peer):
        with peer:
            try:
                peer.recv(4096)
                peer.sendall(first)
                while not stop.wait(SOON_S / 10):
                    peer.sendall(then)
            except OSError:  # it has gone
                return

    def accept():
        while not stop.is_set():
            try:
                peer, _ = server.accept()
            except TimeoutError:
                continue
            threading.Thread(target=trickle, args=[peer], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        serving = threading.Thread(target=accept)
        serving.start()
        yield server.getsockname()[1]
        stop.set()
        serving.join()


@pytest.mark.few(1)
def test_a_page_of_metrics(port, monkeypatch):
    monkeypatch.setattr(serve, "ANSWER_S", SOON_S)
    with pytest.raises(UserError, match="nobody serves at"):
        serve.scraped("127.0.0.1", port)


@pytest.mark.few(1)
def test_the_frames_of_a_page(port, monkeypatch):
    monkeypatch.setattr(terminal, "SILENCE_S", SOON_S)
    with pytest.raises(HomeError):
        next(terminal.frames(f"http://127.0.0.1:{port}/"))
