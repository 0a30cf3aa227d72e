"""A device that is lost in a profile, or breaks the protocol, is left out of it; the others are
profiled.
"""

import pytest
from tests.sdk.run.conftest import make_model
from tests.sdk.run.test_recovery import inject_after

import potluck
from potluck.errors import DeviceGone, ProtocolError
from potluck.profile.left_out import profile_of_the_others
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home
from potluck_wire.messages import Done, Hello

torch = pytest.importorskip("torch")
OTHERS = ("local-1", "local-3")
WHEN = (0, 5, 20, 60, 120)  # messages to the notebook; 130 or so come


def is_lost(lab):
    lab.kill("local-2")


def breaks_the_protocol(lab):
    """It says hello where a notebook does."""
    lab.take_over("local-2", lambda message, buffers: [(Hello(), ())])


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", [is_lost, breaks_the_protocol])
@pytest.mark.parametrize("after", WHEN)
def test_a_device_that_fails_in_a_profile_is_left_out(after, fault):
    model = make_model("mlp")[1]
    with memory_home(3) as home:
        inject_after(home, [(after, lambda: fault(memory_of(home)))])
        with pytest.warns(UserWarning, match=r"local-2 is left out\. local-2"):
            found = home.profile(model, rows=(1, 2), repeats=1, fresh=True).wait()
        assert tuple(device.name for device in found.devices) == OTHERS
        assert set(found.inference.costs) == set(found.training.costs) == {*OTHERS}
        assert "left out of the profile" in found.excluded["local-2"]
        assert any("local-2 is left out" in note for note in found.notes)
        plans = potluck.plan(found, potluck.Training(batch=8))
        assert "local-2" not in plans.best.devices


@pytest.mark.parametrize("told", [b"[[99999,0,1]]", b"[]"], ids=["of no task", "nothing"])
def test_who_lies_about_when_it_did_what_ends_no_profile(told):
    """It is found out while values between devices are timed, when its layers are measured."""
    with memory_home(2) as home:
        memory_of(home).take_over(
            "local-2",
            lambda message, buffers: [(message, (told,) if isinstance(message, Done) else buffers)],
        )
        found = home.profile(make_model("mlp")[1], rows=(1,), repeats=1, fresh=True).wait()
    assert "local-1" in {device.name for device in found.devices}


def test_what_is_nobody_s_fault_or_the_last_one_s_is_raised():
    def alone(names):
        raise DeviceGone("it stopped answering.", device=names[-1])

    with pytest.raises(DeviceGone, match="it stopped"), pytest.warns(match="b is left out"):
        profile_of_the_others(("a", "b"), alone)

    def ours(names):
        raise ProtocolError("this is a fault of potluck's.")

    with pytest.raises(ProtocolError, match="fault of potluck's"):
        profile_of_the_others(("a", "b"), ours)
