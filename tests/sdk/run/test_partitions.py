"""Nothing passes between two of a home, in one direction or both: nobody is taken for dead who is
not, and a training learns what one machine learns.
"""

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_plan
from tests.sdk.run.test_recovery import EPOCHS, ROWS, A, B, C, check_learned, deployed, inject_after

from potluck.errors import DeviceGone
from potluck.sessions.indirect_probes import UNREACHED_S
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of, link_of
from potluck.testing.memory import memory_home
from potluck.testing.memory.network import HOME
from potluck_wire.limits import PULSE_LOST_S

torch = pytest.importorskip("torch")
WAYS = {"there": [(0, 1)], "back": [(1, 0)], "both": [(0, 1), (1, 0)]}


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


def part(lab, one, other, way):
    pair = one, other
    for sender, receiver in WAYS[way]:
        lab.part(pair[sender], pair[receiver])


def mend(lab, one, other):
    lab.mend(one, other)
    lab.mend(other, one)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("plan", ["pipeline", "replicas", "both"])
@pytest.mark.parametrize("after", [50, 70, 90])
def test_devices_that_do_not_reach_each_other_cost_one_of_them(home, way, plan, after):
    run, lab = deployed(home, plan), memory_of(home)
    inject_after(home, [(after, lambda: part(lab, A, B, way))])
    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    link_of(home).watch(None)
    check_learned(run, history)
    assert history.recoveries
    assert not {A, B} <= {*run.plan.devices}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", [A, B])
@pytest.mark.parametrize("after", [50, 70, 90])
def test_a_device_that_only_the_notebook_does_not_reach_is_waited_for_a_while(
    home, way, device, after
):
    """Longer than a dead one: others say that they reach it."""
    run, lab = deployed(home), memory_of(home)

    def fault():
        part(lab, HOME, device, way)
        lab.after(PULSE_LOST_S + 1.5, lambda: mend(lab, HOME, device))

    inject_after(home, [(after, fault)])
    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    link_of(home).watch(None)
    check_learned(run, history)
    assert not history.recoveries


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", [A, B, C])
@pytest.mark.parametrize("after", [50, 70, 90])
def test_a_device_that_the_notebook_never_reaches_again_is_gone(home, way, device, after):
    run, lab = deployed(home), memory_of(home)
    inject_after(home, [(after, lambda: part(lab, HOME, device, way))])
    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    link_of(home).watch(None)
    check_learned(run, history)
    assert [recovery.device for recovery in history.recoveries] == [device]
    assert re.search("reaches it|has answered nothing", history.recoveries[0].cause)
    assert device not in run.plan.devices


@pytest.mark.long
def test_both_sides_end_a_session_that_one_of_them_cannot_use(home):
    """The device ends what it held, and may be used again once the way stands."""
    run, lab = deployed(home), memory_of(home)
    lab.part(B, HOME)
    lab.pass_time(UNREACHED_S + 1.0)
    assert B not in home.devices.ready
    lab.mend(B, HOME)
    home.devices.join()
    assert B in home.devices.ready
    check_learned(run, run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait())


@pytest.mark.few(1)
@pytest.mark.parametrize("protect", [True, 2, False])
@pytest.mark.parametrize("plan", ["pipeline", "replicas", "both"])
@pytest.mark.parametrize("after", [50, 70, 90])
def test_a_device_that_was_given_up_has_all_its_memory_once_it_is_back(home, plan, protect, after):
    """Sooner than its agent would end what the notebook has there."""
    run, lab = deployed(home, plan, protect=protect), memory_of(home)
    _cut(home, lab, B, after)
    with suppress(DeviceGone):
        run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    link_of(home).watch(None)
    assert B not in home.devices.ready
    if protect:
        assert B not in run.plan.devices
    run.close()
    for site in (HOME, A, C):
        mend(lab, site, B)
    home.devices.join()
    model = engine_of(run).model
    for device in (A, B, C):
        whole = replace(
            make_plan(model, ((device,), (4,)), micro_batch=4, n_micro_batches=2),
            peak_bytes={device: home.devices[device].capability["memory_bytes"]},
        )
        home.deploy(whole, model).wait().close()


def _cut(home, lab, device, after):
    """Nothing gets there or from there, after so many messages."""
    others = [site for site in (HOME, A, B, C) if site != device]
    inject_after(home, [(after, lambda: [part(lab, device, site, "both") for site in others])])
