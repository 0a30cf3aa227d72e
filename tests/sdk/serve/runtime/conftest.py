"""A home in memory that serves small models."""

import pytest

import potluck

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
