"""What the owner of a device is told about its pairing window."""

import socket

import pytest

from potluck_agent import control_files
from potluck_agent.core.pairing_window import PairingWindow
from potluck_agent.log_file import LogFile
from potluck_agent.net.event_log import EventLog
from potluck_agent.net.pairing_listener import PairingListener
from potluck_agent.net.poller import Poller
from potluck_wire.limits import PAIRING_TRIES


def test_a_disk_that_is_full_closes_no_pairing_port(tmp_path):
    noted, window = [], PairingWindow(name="jetson", key="a" * 40)
    control_files.ask_window(tmp_path, "12345678", 180.0, "who shows it")
    (tmp_path / control_files.TRIES).mkdir()  # nothing can be written there
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = PairingListener(
            server,
            Poller(),
            window,
            lambda _: True,
            tmp_path,
            EventLog(LogFile(tmp_path / "log", "info", pytest.fail), noted.append),
            pytest.fail,
        )
        listener.tick(0.0)
        for at_s in range(PAIRING_TRIES):
            window.arrive(at_s)
            window.receive(b"no pairing message", at_s)
            window.leave()
            assert control_files.window_asker(tmp_path) == "who shows it"
            listener.tick(at_s)
    assert window.n_wrong == PAIRING_TRIES  # they count all the same
    assert control_files.window_asker(tmp_path) is None  # the code is dead, and that can be told
    assert 1 <= len(noted) <= PAIRING_TRIES


@pytest.mark.parametrize("n_wrong", range(PAIRING_TRIES))
def test_each_wrong_try_is_told_once_and_none_when_the_window_is_closed(tmp_path, n_wrong):
    """The command that shows a code closes the window when it ends, also after a success: that is
    no wrong try.
    """
    noted, window = [], PairingWindow(name="jetson", key="a" * 40)
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = PairingListener(
            server,
            Poller(),
            window,
            lambda _: True,
            tmp_path,
            EventLog(LogFile(tmp_path / "log", "info", pytest.fail), noted.append),
            lambda *_: None,
        )
        control_files.ask_window(tmp_path, "12345678", 180.0)
        listener.tick(0.0)
        for at_s in range(n_wrong):
            window.arrive(at_s)
            window.receive(b"no pairing message", at_s)
            window.leave()
            listener.tick(at_s)
        assert len(noted) == n_wrong
        control_files.ask_window(tmp_path, "", None)
        listener.tick(10.0)
        listener.tick(11.0)
    assert len(noted) == n_wrong
