"""A real agent on a real message bus, on which somebody plays logind: before the machine sleeps,
the agent's notebooks hear of it, and the machine waits for them, but not for nothing.
"""

import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from tests.agent.agents import RawPeer, agent
from tests.agent.test_leaving import ADA, HELLO, TRUST, begun
from tests.timeouts import TIMEOUT_S

from potluck_agent import system_sleep
from potluck_agent.system_sleep import AT, LOGIND, MANAGER, PART, SystemSleep
from potluck_wire.messages import Drop, Dropped, Leaving, Staying, Welcome

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="logind is Linux's"),
    pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="there is no dbus-daemon"),
]
RULES = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path={path}</listen><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>"""
PATIENCE_S = 20.0


class Logind:
    """Answers as systemd's does: a lock is one end of a pipe, given back when it is closed."""

    def __init__(self):
        from jeepney.bus_messages import message_bus
        from jeepney.io.blocking import Proxy, open_dbus_connection

        self.bus = open_dbus_connection("SYSTEM", enable_fds=True)
        Proxy(message_bus, self.bus).RequestName(LOGIND)
        self.asked, self._locks = [], []
        self.patience = ("t", int(PATIENCE_S * 1e6))
        self.listener = None  # who took the latest lock
        self._changed = threading.Condition()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def say(self, before, bus=None, to=None):
        """`bus`: as a stranger. `to` one alone."""
        self.say_so("b", before, bus=bus, to=to)

    def say_so(self, kinds, *values, bus=None, to=None):
        from jeepney import DBusAddress, HeaderFields, new_signal

        emitter = DBusAddress(AT, interface=MANAGER)
        signal = new_signal(emitter, "PrepareForSleep", kinds or None, values)
        if to is not None:
            signal.header.fields[HeaderFields.destination] = to
        (bus or self.bus).send(signal)

    @property
    def n_open(self):
        """Ends of locks that are here."""
        return len(self._locks)

    def leave(self):
        """Another one may be logind now."""
        self._ends.set()
        self._thread.join(TIMEOUT_S)
        self.bus.close()

    def await_lock(self, n=1):
        """The n-th lock that was ever taken."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._locks) >= n, TIMEOUT_S)
            return self._locks[n - 1]

    def is_held(self, lock, within_s=0.0):
        return not select.select([lock], [], [], within_s)[0]

    def close(self):
        self.leave()
        for lock in self._locks:
            os.close(lock)

    def _serve(self):
        with suppress(ConnectionError):  # a test ends the bus
            while not self._ends.is_set():
                with suppress(TimeoutError):
                    self._answer(self.bus.receive(timeout=0.05))

    def _answer(self, call):
        from jeepney import HeaderFields, MessageType, new_method_return

        if call.header.message_type is not MessageType.method_call:
            return
        if call.header.fields[HeaderFields.member] == "Get":
            self.bus.send(new_method_return(call, "v", (self.patience,)))
            return
        mine, theirs = os.pipe()
        self.bus.send(new_method_return(call, "h", (theirs,)))
        os.close(theirs)
        with self._changed:
            self.asked.append(call.body)
            self.listener = call.header.fields[HeaderFields.sender]
            self._locks.append(mine)
            self._changed.notify_all()


@contextmanager
def message_bus(tmp_path, monkeypatch):
    path, config = tmp_path / "bus", tmp_path / "bus.conf"
    config.write_text(RULES.format(path=path))
    line = ["dbus-daemon", "--nofork", "--print-address=1", f"--config-file={config}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout.readline()
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={path}")
        yield daemon
        daemon.terminate()


@pytest.fixture
def bus(tmp_path, monkeypatch):
    with message_bus(tmp_path, monkeypatch) as daemon:
        yield daemon


@pytest.fixture
def logind(bus):
    played = Logind()
    yield played
    played.close()


def test_notebooks_hear_of_it_and_the_machine_waits_for_them(tmp_path, logind):
    with agent(tmp_path / "state", *TRUST, "--drain", "300") as running:
        lock = logind.await_lock()
        assert logind.asked == [
            ("sleep", "potluck", "what runs on this device moves to others first", "delay")
        ]
        with RawPeer(running.port, running.key, ADA) as peer:
            begun(peer)
            logind.say(True)
            (message, _) = peer.receive()
            assert isinstance(message, Leaving)
            assert message.reason == "this machine goes to sleep"
            assert message.within_s == pytest.approx(PART * PATIENCE_S)
            assert logind.is_held(lock)
            assert isinstance(peer.ask(Drop(run="r")), Dropped)
            assert not logind.is_held(lock, TIMEOUT_S)
            logind.say(False)
            assert isinstance(peer.receive()[0], Staying)
            assert logind.is_held(logind.await_lock(2))


def test_nobody_is_waited_for_where_nothing_runs(tmp_path, logind):
    with agent(tmp_path / "state", *TRUST):
        lock = logind.await_lock()
        assert logind.is_held(lock)
        logind.say(True)
        assert not logind.is_held(lock, TIMEOUT_S)


def told(sleep, logind, before):
    """Logind says it until it is heard: who has just begun to listen hears what comes after."""
    while sleep.about_to != before:
        logind.say(before)
        threading.Event().wait(0.01)


@contextmanager
def listening(logind):
    """It hears logind from now on; what was said until then is through."""
    with closing(SystemSleep()) as sleep:
        for before in (True, False):
            told(sleep, logind, before)
        yield sleep


def test_only_logind_is_believed_and_a_bus_that_ends_is_no_fault(bus, logind):
    from jeepney.io.blocking import open_dbus_connection

    with listening(logind) as sleep, open_dbus_connection("SYSTEM") as stranger:
        assert sleep.delay_s == pytest.approx(PART * PATIENCE_S)
        for to in (None, logind.listener):
            logind.say(True, stranger, to)
        threading.Event().wait(0.2)
        assert not sleep.about_to
        told(sleep, logind, True)
        bus.terminate()
        bus.wait(TIMEOUT_S)
        while sleep.about_to:
            threading.Event().wait(0.01)
        assert not logind.is_held(logind.await_lock(), TIMEOUT_S)


def test_without_a_bus_nothing_is_told(monkeypatch):
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
    with closing(SystemSleep()) as sleep:
        assert (sleep.about_to, sleep.delay_s) == (False, 0.0)


def test_a_bus_that_comes_back_is_listened_to_again(tmp_path, monkeypatch):
    monkeypatch.setattr(system_sleep, "AGAIN_S", 0.02)
    with ExitStack() as left:
        for n_before in range(3):
            with message_bus(tmp_path, monkeypatch), closing(Logind()) as logind:
                if not n_before:
                    sleep = left.enter_context(closing(SystemSleep()))
                told(sleep, logind, True)
                assert logind.is_held(logind.await_lock())
            while sleep.about_to:
                threading.Event().wait(0.01)


def test_another_logind_is_listened_to_as_well(bus, monkeypatch):
    monkeypatch.setattr(system_sleep, "AGAIN_S", 0.02)
    with closing(Logind()) as first, listening(first) as sleep:
        first.leave()
        with closing(Logind()) as second:
            told(sleep, second, True)
            assert second.is_held(second.await_lock())


def test_locks_are_given_back_however_often_it_sleeps(logind):
    with listening(logind) as sleep:
        n_open = []
        for n in range(1, 51):
            told(sleep, logind, True)
            sleep.allow()
            told(sleep, logind, False)
            sleep.allow()  # too late: it is awake, and the lock a new one
            assert logind.is_held(logind.await_lock(n + 1))
            n_open.append(len(os.listdir("/proc/self/fd")) - logind.n_open)
        assert n_open[-1] - n_open[0] < 10  # of the whole process: others come and go, too


@pytest.mark.parametrize("body", [("s", "yes"), ("u", 1), ("bb", True, True), ("",)], ids=str)
def test_what_logind_cannot_mean_is_no_sleep(logind, body, monkeypatch):
    monkeypatch.setattr(system_sleep, "AGAIN_S", 0.02)
    with listening(logind) as sleep:
        logind.say_so(*body)
        for before in (False, True, False):
            told(sleep, logind, before)


@pytest.mark.parametrize("told_us", [("d", float("nan")), ("x", -5), ("s", "long"), ("b", True)])
def test_a_patience_that_cannot_be_is_the_usual_one(logind, told_us):
    logind.patience = told_us
    with listening(logind) as sleep:
        assert sleep.delay_s == PART * system_sleep.USUAL_DELAY_S


def test_who_floods_it_drowns_no_word_of_logind(logind):
    """Any user may send it what looks like logind's, or is large."""
    from jeepney.io.blocking import open_dbus_connection

    ends = threading.Event()

    def flood(stranger):
        with suppress(OSError):
            while not ends.is_set():
                logind.say(True, stranger, logind.listener)

    with listening(logind) as sleep, open_dbus_connection("SYSTEM") as stranger:
        thread = threading.Thread(target=flood, args=(stranger,))
        thread.start()
        for before in (True, False, True):
            told(sleep, logind, before)
        ends.set()
        thread.join()


def test_a_large_message_is_not_read(logind, monkeypatch):
    from jeepney.io.blocking import open_dbus_connection

    monkeypatch.setattr(system_sleep, "AGAIN_S", 0.02)
    with listening(logind) as sleep, open_dbus_connection("SYSTEM") as stranger:
        logind.await_lock()
        logind.say_so("ay", bytes(8 << 20), bus=stranger, to=logind.listener)
        assert not logind.is_held(logind.await_lock(1), TIMEOUT_S)  # it has begun anew
        told(sleep, logind, True)


class BrokenBus:
    """Lets everybody in, and then says what it was told to say, or nothing."""

    def __init__(self, path, said):
        self._said, self._ends = said, threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client, suppress(OSError):
                    for answer in (b"", b"OK 0123456789abcdef\r\n", b"AGREE_UNIX_FD\r\n"):
                        client.recv(4096) if answer else client.recv(1)
                        client.sendall(answer)
                    client.recv(4096)
                    client.sendall(self._said)
                    self._ends.wait(None if not self._said else 0.05)

    def close(self):
        self._ends.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(TIMEOUT_S)


SAID = {
    "nothing": b"",
    "noise": bytes(range(256)) * 64,
    "a message of 4 GB": b"l\x02\x01\x01\xff\xff\xff\xff\x01\0\0\0\0\0\0\0" + bytes(1 << 16),
    "an answer to nothing": b"l\x02\x01\x01\0\0\0\0\x01\0\0\0\0\0\0\0",
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_an_agent_does_not_wait_for_a_bus_that_is_broken(tmp_path, monkeypatch, said):
    path = tmp_path / "bus"
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={path}")
    with (
        closing(BrokenBus(path, said)),
        agent(tmp_path / "state", *TRUST) as running,
        RawPeer(running.port, running.key, ADA) as peer,
    ):
        assert isinstance(peer.ask(HELLO), Welcome)
