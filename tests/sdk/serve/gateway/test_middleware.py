"""Answers go at the pace of their reader, who has to read; bodies share their room."""

import asyncio

import pytest

pytest.importorskip("starlette")

from potluck.serve.gateway import middleware
from potluck.serve.gateway.middleware import PIECE_BYTES, SHARE, BodyBudget, RequestGuard, name_in

WHO = ("127.0.0.1", 5)


class Keeper:
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def on_request(self, who):
        self.told.append("asked")

    def answered(self, who):
        self.told.append("answered")

    def disconnect(self, who):
        self.told.append("part")


def scope(**headers):
    rows = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "client": WHO, "headers": rows}


async def nothing():
    return {"type": "http.disconnect"}


def answering(body):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return application


@pytest.mark.parametrize("n", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_a_long_answer_is_the_same_in_pieces(n):
    keeper, sent = Keeper(), []

    async def send(message):
        sent.append(message)

    body = bytes(i % 251 for i in range(n))
    within = RequestGuard(answering(body), keeper, BodyBudget(0), None)
    asyncio.run(within(scope(), nothing, send))
    _, *pieces = sent
    assert b"".join(each["body"] for each in pieces) == body
    assert [each.get("more_body", False) for each in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(len(each["body"]) <= PIECE_BYTES for each in pieces)
    assert keeper.told == ["asked", "answered"]


def test_a_long_answer_is_one_when_its_last_piece_is_read():
    """By HTTPS, who read less than 52 kB a second lost up to half a MiB of its end."""
    keeper, sent = Keeper(), []
    unread = asyncio.Semaphore(1)

    async def send(message):
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            await unread.acquire()  # as a server: of the pieces before this one

    async def read_all():
        body = bytes(3 * PIECE_BYTES)
        within = RequestGuard(answering(body), keeper, BodyBudget(0), None)
        under_way = asyncio.ensure_future(within(scope(), nothing, send))
        for n_read in range(1, 4):
            for _ in range(100):
                await asyncio.sleep(0)
            assert (len(sent), keeper.told) == (n_read + 1, ["asked"])
            unread.release()
        await under_way

    asyncio.run(read_all())
    assert keeper.told == ["asked", "answered"]


def test_who_does_not_read_its_answer_is_disconnected(monkeypatch):
    monkeypatch.setattr(middleware, "PIECE_S", 0.01)
    keeper = Keeper()

    async def send(message):
        await asyncio.Event().wait()

    asyncio.run(RequestGuard(answering(b"x"), keeper, BodyBudget(0), None)(scope(), nothing, send))
    assert keeper.told == ["asked", "part", "part", "answered"]


def test_room_comes_back_whatever_becomes_of_a_request():
    room = BodyBudget(10)

    async def application(scope, receive, send):
        share = scope[SHARE]
        assert share.take(6)
        assert not share.take(5)
        assert share.take(4)
        raise ValueError("a fault")

    async def send(message):
        pass

    for _ in range(3):
        with pytest.raises(ValueError, match="a fault"):
            asyncio.run(RequestGuard(application, Keeper(), room, None)(scope(), nothing, send))
    assert room.used_bytes == 0


@pytest.mark.parametrize("name", ["host", "origin"])
@pytest.mark.parametrize("last", ["evil.example", "localhost"])
def test_of_a_header_that_is_there_twice_both_count(name, last):
    sent = []

    async def send(message):
        sent.append(message)

    first = "localhost" if last == "evil.example" else "evil.example"
    begin = "" if name == "host" else "http://"
    rows = [(name.encode(), f"{begin}{each}".encode()) for each in (first, last)]
    within = RequestGuard(answering(b"x"), Keeper(), BodyBudget(0), ("localhost",))
    asyncio.run(within({**scope(), "headers": rows}, nothing, send))
    assert sent[0]["status"] == 403


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("//LOCALHOST:1", "localhost"),
        ("http://a@b:1", "b"),
        ("//[::1]", "::1"),
        ("//[::1", ""),
        ("null", ""),
        ("", ""),
    ],
)
def test_the_name_in_an_address(url, name):
    assert name_in(url) == name
