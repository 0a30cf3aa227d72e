"""A home in memory that serves small models."""

import threading
from contextlib import contextmanager

import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.testing.internals import link_of

torch = pytest.importorskip("torch")
LONG_S = 120.0  # a limit that the busiest machine holds


@pytest.fixture(scope="session")
def net():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers)


@pytest.fixture(scope="session")
def model(net):
    return potluck.Model.from_torch(net, torch.randn(6, 8))


@pytest.fixture
def birds(own_home, model):
    with own_home.serve(model, name="birds", slo=potluck.Latency(LONG_S)).wait() as service:
        yield service


@contextmanager
def standing_still(home):
    """Nothing of this home happens, in its link's thread, until the block has ended."""
    ended = threading.Event()
    link_of(home).watch(lambda event, actions: ended.wait(TIMEOUT_S) and None)
    try:
        yield
    finally:
        link_of(home).watch(None)
        ended.set()
