"""A home whose devices take the steps of other libraries' loops, and a plan with both of them."""

import pytest

from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


@pytest.fixture
def on_both():
    """Takes the first plan that is no plan of one device."""
    return lambda plans: next(plan for plan in plans if len(plan.devices) == 2)
