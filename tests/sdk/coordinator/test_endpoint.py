"""Whatever a coordinator answers, who asked has an answer or an error in words, and memory left."""

import sys
import threading
from contextlib import contextmanager

import pytest
import zmq
from tests.sdk.coordinator.in_memory import new_keys

from potluck.coordinator.endpoint import MAX_ANSWER_BYTES, Endpoint
from potluck.errors import PotluckError

LONG_S = 120.0
MIB = bytes(1 << 20)
# more than all that may come, and than a sender keeps of what nobody takes
ENDLESS = [MIB] * (16 * (MAX_ANSWER_BYTES // len(MIB)))


@contextmanager
def answering(*frames):
    """A coordinator that answers the first request with these, and then no more."""
    own, mine = new_keys(), new_keys()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_publickey = own.public.encode()
    socket.curve_secretkey = own.secret.encode()
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def answer():
        if socket.poll(LONG_S * 1000):
            route = socket.recv_multipart()[0]
            socket.send_multipart([route, b"", *frames], copy=False)

    thread = threading.Thread(target=answer)
    thread.start()
    yield Endpoint(host="127.0.0.1", port=port, key=own.public, keys=mine)
    thread.join()
    socket.close(0)
    context.term()


def test_an_answer_comes_with_its_bytes():
    with answering(b'{"jobs": []}', b"data") as place:
        assert place.ask("jobs") == ({"jobs": []}, b"data")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no other system counts it")
def test_an_answer_without_an_end_is_given_up_before_it_takes_memory():
    with answering(b"{}", *ENDLESS) as place, pytest.raises(PotluckError, match=r"more than 64"):
        place.ask("jobs", within_s=LONG_S)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"{}"],
        [b"{}", b"", b""],
        [b"[]", b""],
        [b"\xff", b""],
        [b"[" * 5000, b""],
        [b'{"a":' * 5000, b""],
        [b"1" * 5000, b""],
        [b'{"error": {"a": 1}}', b""],
        [b'{"error": "' + b"x" * 100_000 + b'"}', b""],
        [b'{"error": "\\u001b[2J\\ud800"}', b""],
    ],
    ids=range(11),
)
def test_what_is_no_answer_is_an_error_in_words(frames):
    with answering(*frames) as place, pytest.raises(PotluckError) as caught:
        place.ask("jobs", within_s=LONG_S)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 30_000
