"""A home in memory is as one of processes: it computes the same, and its devices fail alike."""

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import DeviceGone, HomeError, OutOfMemory, PotluckError, Refused, WorkerFailed
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import Moment, agents_of, at, memory_of
from potluck.testing.memory import memory_home
from potluck_wire.limits import PULSE_LOST_S
from potluck_wire.messages import Commit, Execute, Prepare

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
STAGES = ((A,), (4,)), ((B,), (4,))


def deployed(home, *stages, **more):
    _, model = make_model("mlp")
    plan = make_plan(model, *(stages or STAGES), micro_batch=4, n_micro_batches=2)
    return home.deploy(plan, model, **more).wait()


def trained(home, *stages):
    run = deployed(home, *stages)
    losses, state = run.fit(make_data("mlp", 16), epochs=3).wait().losses, run.state_dict()
    run.close()
    return losses, state


@pytest.mark.long
def test_it_switches_as_processes_do_to_the_bit(home, process_home):
    found = []
    _, model = make_model("mlp")
    other = make_plan(model, ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    for each in (home, process_home):
        run = deployed(each)
        x, y = make_data("mlp", 16)
        run.fit((x, y)).wait()
        switching = run.switch(other)
        run.fit((x, y), epochs=2).wait()
        switching.wait()
        run.fit((x, y)).wait()
        with torch.no_grad():
            found.append((run.history.losses, run(x), run.state_dict()))
        run.close()
    (losses, out, state), (expected, expected_out, weights) = found
    assert losses == expected
    assert torch.equal(out, expected_out)
    assert all(torch.equal(state[name], weights[name]) for name in weights)


@pytest.mark.long
@pytest.mark.parametrize("stages", [STAGES, (((A, B), (3, 1)),)], ids=["pipeline", "replicas"])
def test_it_computes_what_processes_compute_to_the_bit(home, process_home, stages):
    (losses, state), (expected, weights) = trained(home, *stages), trained(process_home, *stages)
    assert losses == expected
    assert all(torch.equal(state[name], weights[name]) for name in weights)


def test_the_same_happens_again_at_the_same_virtual_times():
    traces = []
    for _ in range(2):
        with memory_home(2) as home:
            run = deployed(home)
            run.fit(make_data("mlp", 8)).wait()
            first = min(event.start_s for event in run.trace.events)
            traces.append([(e.device, e.label, e.start_s - first) for e in run.trace.events])
            run.close()
    for one, other in zip(*traces, strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], abs=2.5e-6)  # two times, each in whole us


def test_a_slow_device_takes_longer_in_virtual_time(own_home):
    with memory_home([Spec(name=A), Spec(name=B, slowdown=50)]) as slow:
        spans = []
        for home in (own_home, slow):
            run = deployed(home)
            run.fit(make_data("mlp", 8)).wait()
            spans.append(
                {e.device: e.stop_s - e.start_s for e in run.trace.events if e.op == "run"}
            )
            run.close()
    even, uneven = spans
    assert uneven[B] > 10 * even[B]
    assert uneven[A] < 2 * even[A]


def test_a_device_whose_cable_is_pulled_is_missed_after_virtual_seconds(own_home):
    run = deployed(own_home, protect=False)
    handle = run.fit(make_data("mlp", 16), epochs=1_000_000)
    memory_of(own_home).pull(B)
    with pytest.raises(DeviceGone, match=f"{B}: no sign of life"):
        handle.wait()
    memory_of(own_home).plug(B)
    assert trained(own_home)


def test_no_sign_of_life_is_missed_by_somebody_who_waits_for_nothing(own_home):
    memory_of(own_home).pull(B)
    memory_of(own_home).pass_time(PULSE_LOST_S / 2)
    assert own_home.devices.ready == (A, B)
    memory_of(own_home).pass_time(PULSE_LOST_S)
    assert own_home.devices.ready == (A,)


def test_a_device_that_was_killed_is_named_and_can_be_started_again(own_home):
    run = deployed(own_home, protect=False)
    handle = run.fit(make_data("mlp", 16), epochs=1_000_000)
    memory_of(own_home).kill(B)
    with pytest.raises(DeviceGone, match=B):
        handle.wait()
    with pytest.raises(HomeError, match="gone"):
        memory_of(own_home).kill(B)
    memory_of(own_home).restart(B)
    assert trained(own_home)


def how_it_ends(attempt):
    """What it raises; None where it goes well."""
    try:
        attempt()
    except PotluckError as error:
        return error
    return None


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "moment", [Moment(Prepare, 0), Moment(Commit, 0), Moment(Execute, 0, "push")], ids=str
)
@pytest.mark.parametrize("after", [0, 1])
def test_a_worker_that_dies_at_any_moment_is_named_and_another_is_started(own_home, moment, after):
    killed = []

    def kill():
        killed.append(memory_of(own_home).kill_worker(B))

    with at(own_home, moment, kill, after=after):
        ended = how_it_ends(
            lambda: deployed(own_home, protect=False).fit(make_data("mlp", 16)).wait()
        )
    if ended is not None:  # one that did nothing yet is not missed
        assert isinstance(ended, WorkerFailed | Refused)
        assert ended.device == B
    assert killed
    assert trained(own_home)


def test_a_late_device_changes_no_result(own_home, home):
    memory_of(own_home).delay(B, 0.05)
    assert trained(own_home)[0] == trained(home)[0]


def test_a_plan_beyond_the_memory_of_a_device_is_refused():
    from dataclasses import replace

    with memory_home([Spec(name=A, memory="1 MiB")]) as home:
        _, model = make_model("mlp")
        plan = replace(make_plan(model, ((A,), (4,)), micro_batch=4), peak_bytes={A: 2**21})
        with pytest.raises(OutOfMemory, match=A):
            home.deploy(plan, model).wait()


def test_values_larger_than_a_chunk_and_than_the_window_arrive_whole():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 2**18), torch.nn.ReLU(), torch.nn.Linear(2**18, 4))
    x = torch.randn(4, 8)
    with memory_home([Spec(name=A, link_rate="100 Mbit/s"), Spec(name=B)]) as home:
        model = potluck.Model.from_torch(net, x)
        plan = make_plan(model, *STAGES, micro_batch=4, training=False)
        run = home.deploy(plan, model).wait()
        with torch.no_grad():
            assert torch.allclose(run(x), net(x), atol=1e-5)
        run.close()


def test_it_ends_what_waits_when_it_is_closed():
    home = memory_home(2)
    run = deployed(home)
    handle = run.fit(make_data("mlp", 16), epochs=1_000_000)
    home.close()
    with pytest.raises(HomeError, match="closed"):
        handle.wait()
    with pytest.raises(HomeError, match="closed"):
        home.profile(make_model("mlp")[1], rows=(1,)).wait()


def test_each_kind_of_home_names_what_it_is_not(home, process_home):
    with pytest.raises(HomeError, match="no processes"):
        agents_of(home)
    with pytest.raises(HomeError, match="not in memory"):
        memory_of(process_home)
    assert agents_of(process_home).is_there(A)
