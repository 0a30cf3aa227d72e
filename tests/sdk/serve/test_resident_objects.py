"""What was there before is left out of collections while someone serves."""

import gc

import pytest
from tests.sdk.serve.runtime.conftest import LONG_S

import potluck
from potluck.serve.resident_objects import leave_out, take_back
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")


def test_it_is_taken_back_once_nobody_asks_for_it():
    one, other = object(), object()
    leave_out(one)
    leave_out(one)
    leave_out(other)
    take_back(one)
    assert gc.get_freeze_count() > 0
    take_back(object())  # never asked
    assert gc.get_freeze_count() > 0
    take_back(other)
    assert gc.get_freeze_count() == 0


def test_while_services_are_open():
    model = potluck.Model.from_torch(torch.nn.Linear(4, 4), torch.zeros(2, 4), name="net")
    slo = potluck.Latency(LONG_S)
    with memory_home() as home:
        with home.serve(model, "one", slo=slo).wait(), home.serve(model, "two", slo=slo).wait():
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() == 0
        home.serve(model, "three", slo=slo).wait()
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
