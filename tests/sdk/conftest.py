"""Real agents for the tests of runs and of shared requests: two on this machine, started once."""

import pytest

import potluck
from potluck.offload.maintenance import Maintenance


@pytest.fixture(scope="session")
def home():
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
