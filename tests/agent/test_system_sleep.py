"""A real agent on a real message bus, on which somebody plays logind: before the machine sleeps,
the agent's notebooks hear of it, and the machine waits for them, but not for nothing.
"""

import os
import select
import shutil
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress

import pytest
from tests.agent.agents import RawPeer, agent
from tests.agent.test_leaving import ADA, TRUST, begun
from tests.timeouts import TIMEOUT_S

from potluck_agent.system_sleep import AT, LOGIND, MANAGER, PART, SystemSleep
from potluck_wire.messages import Drop, Dropped, Leaving, Staying

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
        self._changed = threading.Condition()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def say(self, before, bus=None):
        from jeepney import DBusAddress, new_signal

        emitter = DBusAddress(AT, interface=MANAGER)
        (bus or self.bus).send(new_signal(emitter, "PrepareForSleep", "b", (before,)))

    def await_lock(self, n=1):
        """The n-th lock that was ever taken."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._locks) >= n, TIMEOUT_S)
            return self._locks[n - 1]

    def is_held(self, lock, within_s=0.0):
        return not select.select([lock], [], [], within_s)[0]

    def close(self):
        self._ends.set()
        self._thread.join(TIMEOUT_S)
        self.bus.close()
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
            told = ("t", int(PATIENCE_S * 1e6))
            self.bus.send(new_method_return(call, "v", (told,)))
            return
        mine, theirs = os.pipe()
        self.bus.send(new_method_return(call, "h", (theirs,)))
        os.close(theirs)
        with self._changed:
            self.asked.append(call.body)
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


def heard(sleep, bus):
    """What it makes of all that was said so far: the bus keeps the order."""
    from jeepney.bus_messages import message_bus
    from jeepney.io.blocking import Proxy

    Proxy(message_bus, bus).GetId()
    threading.Event().wait(0.2)
    return sleep.look()


def test_only_logind_is_believed_and_a_bus_that_ends_is_no_fault(bus, logind):
    from jeepney.io.blocking import open_dbus_connection

    with closing(SystemSleep()) as sleep, open_dbus_connection("SYSTEM") as stranger:
        assert sleep.delay_s == pytest.approx(PART * PATIENCE_S)
        logind.say(True, stranger)
        assert not heard(sleep, stranger)
        for before in (True, False, True):
            logind.say(before)
        assert heard(sleep, stranger)
        bus.terminate()
        bus.wait(TIMEOUT_S)
        assert not sleep.look()
        assert not logind.is_held(logind.await_lock(), TIMEOUT_S)


def test_without_logind_or_without_a_bus_nothing_is_told(bus, monkeypatch):
    with closing(SystemSleep()) as sleep:
        assert (sleep.look(), sleep.delay_s) == (False, 0.0)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
    with closing(SystemSleep()) as sleep:
        assert not sleep.look()
