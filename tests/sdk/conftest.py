"""Homes for the tests of runs and of shared requests.

`home` is in memory: results, switches and histories are those of the real controller, cores and
workers. `process_home` has real agents on this machine, for what only a process can show.
"""

import pytest

import potluck
from potluck.offload.maintenance import Maintenance
from potluck.testing.memory import memory_home


@pytest.fixture(scope="session")
def home():
    pytest.importorskip("torch").set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


@pytest.fixture(scope="session")
def process_home():
    pytest.importorskip("torch").set_num_threads(1)
    with potluck.Home.local(2) as opened:
        yield opened


@pytest.fixture
def fresh_home():
    """A home that the test may break."""
    pytest.importorskip("torch").set_num_threads(1)
    with potluck.Home.local(2) as opened:
        yield opened


@pytest.fixture
def nobody_asks(monkeypatch):
    """These tests say what the bandwidth is.

    What the link really carries must not change it meanwhile.
    """
    monkeypatch.setattr(Maintenance, "_should_ask", lambda *_: False)
