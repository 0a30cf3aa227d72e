"""One request shared by three real agents: the answer is the module's, whichever of the helpers
goes and comes back.
"""

import pytest
from tests.sdk.graph.families import family
from tests.sdk.offload.accelerating import check, fast_of, wait_until
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import UserError
from potluck.offload import accelerated as fast_module
from potluck.offload.accelerate import accelerate
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import agents_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nobody_asks")

PACES = {"slow_s": 0.01, "fast_s": 0.004, "bandwidths": (0.0, 3e7)}  # so that it takes all three


@pytest.fixture(scope="module")
def three():
    torch.set_num_threads(1)
    light = ("onnxruntime",)  # is there sooner than torch
    specs = [Spec(name=name, backends=light) for name in ("robot", "desktop", "nas")]
    with potluck.Home.lab(specs) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("name", ["vgg", "resnet", "mobilenet", "unet"])
def test_the_answer_is_the_modules_at_every_entry_of_the_table(three, name, monkeypatch):
    # a busy machine is no reason to answer alone
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family(name)
    with torch.no_grad():
        expected = net(x)
    with fast_of(three, net, x, **PACES) as fast:
        for entry in fast.table.entries:
            fast.bytes_per_s = entry.bytes_per_s
            check(fast(x), expected)
            execution, _ = fast.kept[-1]
            for device, timeline in execution.timelines.items():
                assert timeline.peak_bytes <= fast.memory_bytes[device]
        assert fast.failure is None
        assert {answer.by for answer in fast.stats.answers} >= {
            ("robot",),
            ("robot", "desktop", "nas"),
        }


@pytest.mark.long
def test_three_lines_name_both_helpers_and_all_sides_are_shown(three, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    helpers = [three["desktop"], three["nas"]]
    made = potluck.accelerate(net, x, helper=helpers, device=three["robot"], bandwidths=(0.0, 1e8))
    with made.wait() as fast:
        check((fast(x),), expected)
        assert fast.sides == ("robot", "desktop", "nas")
    with fast_of(three, net, x, **PACES) as fast:
        fast.bytes_per_s = 1e8
        fast(x)
        account = fast.explain(1e8)
        assert "One request on robot with desktop and nas" in repr(account)
        assert all(account.rows[side] for side in fast.sides)
        assert all(f"on {side}" in account._repr_html_() for side in fast.sides)
        assert "robot, desktop, nas" in repr(fast.stats)


def test_helpers_are_different_devices(three):
    net, x = family("vgg")
    for helpers in ([three["nas"], three["nas"]], [three["robot"], three["nas"]]):
        with pytest.raises(UserError, match="different devices of one home"):
            accelerate(net, x, helper=helpers, device=three["robot"])
    with pytest.raises(UserError, match="a device of a home is expected"):
        accelerate(net, x, helper=[])


@pytest.mark.long
def test_a_helper_that_dies_leaves_the_next_requests_to_those_that_are_left(three, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(three, net, x, **PACES) as fast:
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        agents_of(three).kill("nas")
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        assert fast.stats.answers[-1].by == ("robot",)

        wait_until(lambda: fast.is_helped)
        assert fast.sides == ("robot", "desktop")
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        assert fast.stats.answers[-1].by == ("robot", "desktop"), fast.failure

        agents_of(three).restart("nas")
        wait_until(lambda: fast.sides == ("robot", "desktop", "nas"))
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        assert fast.stats.answers[-1].by == ("robot", "desktop", "nas")
