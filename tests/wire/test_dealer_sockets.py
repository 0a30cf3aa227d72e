"""Sockets that open connections, as they end."""

import subprocess
import sys

ROUNDS = 20
# A server and a client part at the same moment, with a message half sent.
PART = """
import sys, zmq
from potluck_wire.dealer_sockets import set_up_dealer
from potluck_wire.limits import LINGER_MS

key, secret = zmq.curve_keypair()
ours = [part.decode() for part in zmq.curve_keypair()]
for _ in range(int(sys.argv[1])):
    context = zmq.Context()
    server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    server.curve_server, server.curve_secretkey = True, secret
    set_up_dealer(client, "127.0.0.1", key.decode(), *ours)
    server.linger = client.linger  # with 0 one of some six rounds ends in libzmq's abort
    client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
    client.send(b"hello")
    route, _ = server.recv_multipart()
    server.send_multipart([route] + [bytes(1 << 20)] * 64)
    client.poll(5)
    context.destroy(LINGER_MS)
"""


def test_a_socket_that_closes_with_a_message_half_sent_ends_no_process():
    command = [sys.executable, "-c", PART, str(ROUNDS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
