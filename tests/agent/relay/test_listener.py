"""Of who connects to a relay, some are served, and all others hung up on at once."""

import asyncio
import errno
import socket
from contextlib import suppress

from tests.agent.relay.relays import HOST, free_ports
from tests.timeouts import TIMEOUT_S

from potluck_agent.relay.listener import CountingListener
from potluck_agent.relay.visits import ArrivalRate

N_STRANGERS = 100  # the system keeps some more until they are taken
SERVED = b"served"


async def said(source, port):
    """What somebody hears who connects from there; nothing, where that ends at once."""
    heard = b""
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
        heard = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        writer.close()
    return heard


async def serve(stream, came_from):
    stream.writer.write(SERVED)
    await stream.writer.drain()
    stream.writer.close()


def test_one_address_that_comes_without_end_is_served_as_often_as_it_may_and_others_too():
    async def play():
        port = free_ports(1)
        listener = CountingListener(HOST, port, ArrivalRate(per_s=0.0, at_once=3), serve)
        many = await asyncio.gather(*(said("127.0.0.3", port) for _ in range(N_STRANGERS)))
        assert many.count(SERVED) == 3
        assert set(many) == {SERVED, b""}
        assert await said("127.0.0.4", port) == SERVED
        listener.close()
        listener.close()  # twice is fine
        assert await said("127.0.0.5", port) == b""

    asyncio.run(play())


def test_without_descriptors_it_waits_and_goes_on(monkeypatch):
    """It neither ends nor spins."""

    class FullSocket(socket.socket):
        n_asked = 0

        def accept(self):
            FullSocket.n_asked += 1
            if FullSocket.n_asked <= 2:
                raise OSError(errno.EMFILE, "none left")
            return super().accept()

    def full_server(place, *, family, backlog):
        listening = FullSocket(family)
        listening.bind(place)
        listening.listen(backlog)
        return listening

    port = free_ports(1)
    monkeypatch.setattr("socket.create_server", full_server)

    async def play():
        listener = CountingListener(HOST, port, ArrivalRate(per_s=1.0, at_once=1), serve)
        assert await said(HOST, port) == SERVED
        assert FullSocket.n_asked <= 4
        listener.close()

    asyncio.run(play())
