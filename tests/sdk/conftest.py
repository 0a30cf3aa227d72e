"""Homes for the tests of runs and of shared requests.

`home` is in memory: results, switches and histories are those of the real controller, cores and
workers. `process_home` has real agents on this machine, for what only a process can show.
"""

from contextlib import suppress

import pytest

import potluck
from potluck.errors import PotluckError
from potluck.offload.link_bandwidth import LinkBandwidth
from potluck.testing.faults import agents_of
from potluck.testing.memory import memory_home


@pytest.fixture(scope="session")
def home():
    pytest.importorskip("torch").set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


@pytest.fixture
def own_home():
    """In memory, and of this test alone."""
    pytest.importorskip("torch").set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


@pytest.fixture(scope="session")
def process_home():
    pytest.importorskip("torch").set_num_threads(1)
    with potluck.Home.local(2) as opened:
        yield opened


@pytest.fixture
def fresh_home(process_home):
    """Processes that the test may break: who is gone afterwards is started again."""
    yield process_home
    agents = agents_of(process_home)
    for name in process_home.devices:
        if not agents.is_there(name):
            agents.restart(name)
        while name not in process_home.devices.ready:
            with suppress(PotluckError):  # the link may not have noticed yet that it is gone
                process_home.devices.need([name])


@pytest.fixture
def nobody_asks(monkeypatch):
    """These tests say what the bandwidth is.

    What the link really carries must not change it meanwhile.
    """
    monkeypatch.setattr(LinkBandwidth, "should_ask", lambda *_, **__: False)
