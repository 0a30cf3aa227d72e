"""Whoever floods a coordinator, with a key or without one, takes its memory and its connections
from nobody else.
"""

import json
import socket
import threading
import time
from contextlib import ExitStack

import pytest
import zmq
from tests.sdk.coordinator.test_coordinator import case, handed_over
from tests.sdk.coordinator.test_server import mine, new_keys, serving

from potluck.coordinator import server, socket_connections
from potluck.coordinator.fetched_states import CHUNK_BYTES
from potluck.coordinator.job import files_of
from potluck.coordinator.job_upload import JobUpload
from potluck.coordinator.server import VERSION
from potluck.coordinator.server_socket import MAX_QUEUED, ServerSocket
from potluck.coordinator.socket_connections import MAX_OF_A_KEY, MAX_STRANGERS
from potluck.errors import FileError, HomeError, PotluckError, UserError
from potluck.handle import Task

torch = pytest.importorskip("torch")
__all__ = ["case", "mine", "serving"]  # fixtures
MIB = 1 << 20


def knock(context, place, **options):
    """A socket of a notebook's that says what it likes."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.curve_serverkey = place.key.encode()
    dealer.curve_publickey = place.keys.public.encode()
    dealer.curve_secretkey = place.keys.secret.encode()
    for name, value in options.items():
        dealer.setsockopt(getattr(zmq, name.upper()), value)
    dealer.connect(f"tcp://{place}")
    return dealer


def request(**about):
    return [b"", json.dumps({"version": VERSION, **about}).encode(), b""]


@pytest.fixture
def context():
    with zmq.Context() as made:
        yield made


@pytest.mark.long
def test_answers_that_nobody_takes_are_few(tmp_path, case, serving, context):
    place, _ = serving
    handed_over(tmp_path / "packed", case)
    place.hand_over("job", tmp_path / "packed", Task())
    state = tmp_path / "jobs" / "job" / "start.safetensors"
    with state.open("ab") as file:
        file.truncate(8 * MIB)
    hostile = knock(context, place, rcvhwm=1, rcvbuf=65536)
    n_asked = 200
    for _ in range(n_asked):
        hostile.send_multipart(request(ask="read", job="job"))
    assert place.ask("jobs")[0] == {"jobs": ["job"]}
    time.sleep(0.5)  # it goes on answering whoever takes nothing
    n_kept = 0
    while hostile.poll(500):
        *_, data = hostile.recv_multipart()
        assert len(data) == CHUNK_BYTES
        n_kept += 1
        time.sleep(0.01)
    assert n_kept < n_asked / 4
    assert MAX_QUEUED < 8
    hostile.close()


def test_a_message_of_too_many_frames_ends_its_connection(serving, context):
    place, _ = serving
    hostile = knock(context, place)
    monitor = hostile.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    hostile.send_multipart([*request(ask="jobs"), *[b"x"] * 100])
    assert monitor.poll(20_000)
    assert place.ask("jobs")[0] == {"jobs": []}
    hostile.disable_monitor()
    monitor.close()
    hostile.close()


def test_a_message_without_an_end_ends_with_its_connection(serving, context, monkeypatch):
    monkeypatch.setattr(socket_connections, "MAX_UNREAD_BYTES", 8 * MIB)
    place, _ = serving
    hostile = knock(context, place, sndhwm=0)
    monitor = hostile.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    hostile.send_multipart([*request(ask="jobs"), *[bytes(MIB)] * 256])
    assert monitor.poll(20_000)
    assert place.ask("jobs")[0] == {"jobs": []}
    hostile.disable_monitor()
    monitor.close()
    hostile.close()


def test_strangers_who_say_nothing_are_cut_off_the_oldest_first(serving):
    place, _ = serving
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((place.host, place.port), 20.0))
            for _ in range(MAX_STRANGERS + 20)
        ]
        assert place.ask("jobs")[0] == {"jobs": []}
        for each in silent[:20]:
            with each:
                while each.recv(1024):  # the greeting, then the end
                    pass


def test_of_too_many_connections_of_a_key_the_oldest_end(serving, context):
    place, _ = serving
    many = []
    for _ in range(MAX_OF_A_KEY + 4):
        dealer = knock(context, place)
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.send_multipart(request(ask="jobs"))
        assert dealer.poll(20_000)
        many.append((dealer, monitor))
    assert many[0][1].poll(20_000)
    assert not many[-1][1].poll(100)
    for dealer, monitor in many:
        dealer.disable_monitor()
        monitor.close()
        dealer.close()


def test_others_are_answered_while_a_job_is_looked_through(tmp_path, case, serving, monkeypatch):
    place, coordinator = serving
    handed_over(tmp_path / "packed", case)
    goes_on, admit = threading.Event(), coordinator.admit
    monkeypatch.setattr(coordinator, "admit", lambda job: (goes_on.wait(60.0), admit(job)))
    coming = threading.Thread(target=place.hand_over, args=("job", tmp_path / "packed", Task()))
    coming.start()
    try:
        assert place.ask("jobs", within_s=20.0)[0] == {"jobs": []}
    finally:
        goes_on.set()
        coming.join()
    assert place.ask("jobs")[0] == {"jobs": ["job"]}


def test_more_jobs_than_can_wait_are_refused_and_kept(tmp_path, case, serving, monkeypatch):
    place, _ = serving
    handed_over(tmp_path / "packed", case)
    with monkeypatch.context() as patch:
        patch.setattr(server, "MAX_ADMITTING", 0)
        with pytest.raises(PotluckError, match="wait for jobs to be looked through"):
            place.hand_over("job", tmp_path / "packed", Task())
    assert place.ask("jobs")[0] == {"jobs": []}
    place.ask("admit", job="job")
    assert place.ask("jobs")[0] == {"jobs": ["job"]}


@pytest.fixture
def arrival(tmp_path, case):
    handed_over(tmp_path / "packed", case)
    return JobUpload(
        tmp_path / "coming", {k: [*v] for k, v in files_of(tmp_path / "packed").items()}
    )


@pytest.mark.parametrize("at", [1, 10**9])
def test_files_come_in_order_so_that_none_has_holes(arrival, at):
    with pytest.raises(UserError, match=r"0 of .* bytes have come, in order"):
        arrival.put("start.safetensors", at, b"x")
    with pytest.raises(FileError, match="is not as it was sent"):
        arrival.check()


def test_a_state_beyond_the_memory_here_is_refused_before_it_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 100}))
    files = {name: [60, ""] for name in ("model.safetensors", "start.safetensors", "job.json")}
    with pytest.raises(UserError, match="100 B of memory are free where the coordinator is"):
        JobUpload(tmp_path / "coming", {**files, "batches/order.safetensors": [1, ""]})
    assert [*tmp_path.iterdir()] == []


def test_where_a_port_is_taken_it_says_so():
    keys = new_keys()
    first = ServerSocket(keys, lambda key: False, "127.0.0.1", 0)
    with pytest.raises(HomeError, match=r"cannot listen at 127"):
        ServerSocket(keys, lambda key: False, "127.0.0.1", first.port)
    first.close()
