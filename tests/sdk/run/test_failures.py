"""What goes wrong ends with a named cause, and leaves no process behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import psutil
import pytest
from tests.sdk.offload.accelerating import wait_until
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import (
    DeviceGone,
    EmptyHome,
    IdentityChanged,
    NotPaired,
    OutOfMemory,
    UserError,
    WorkerFailed,
)
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import agents_of
from potluck.testing.internals import engine_of

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"


def start_training(home):
    """A run that trains until it is stopped or loses a device, and its handle, after the first
    step.
    """
    _, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    run = home.deploy(plan, model, protect=False).wait()
    run.fit((x, y)).wait()
    return model, run, run.fit((x, y), epochs=1_000_000)


def agent(home, name):
    return psutil.Process(agents_of(home).process(name).pid)


def test_a_killed_worker_is_named_and_its_agent_lives(fresh_home):
    model, run, handle = start_training(fresh_home)
    (worker,) = agents_of(fresh_home).workers(B)
    worker.kill()
    with pytest.raises(WorkerFailed, match=r"local-2.*worker"):
        handle.wait()
    with pytest.raises(WorkerFailed, match="has ended"):
        run.fit(make_data("mlp", 4))
    assert agent(fresh_home, B).is_running()
    again = fresh_home.deploy(make_plan(model, ((B,), (4,)), micro_batch=4), model).wait()
    assert len(again.fit(make_data("mlp", 8)).wait().losses) == 2


@pytest.mark.long
def test_a_killed_agent_is_named_and_the_others_go_on(fresh_home):
    model, _, handle = start_training(fresh_home)
    agent(fresh_home, B).kill()
    with pytest.raises(DeviceGone, match="local-2"):
        handle.wait()
    assert fresh_home.devices[B].status == "gone"
    again = fresh_home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    assert len(again.fit(make_data("mlp", 8)).wait().losses) == 2
    with pytest.raises(DeviceGone, match="local-2"):
        fresh_home.deploy(make_plan(model, ((B,), (4,)), micro_batch=4), model).wait()


@pytest.mark.long
def test_an_agent_that_is_back_is_ready_without_being_asked_for(fresh_home):
    agents = agents_of(fresh_home)
    agents.kill(B)
    wait_until(lambda: fresh_home.devices[B].status == "gone")
    agents.restart(B)
    wait_until(lambda: fresh_home.devices[B].status == "ready")
    assert fresh_home.devices.ready == (A, B)


def test_a_stopped_agent_is_noticed_by_its_silence(fresh_home):
    _, _, handle = start_training(fresh_home)
    process = agent(fresh_home, B)
    process.suspend()
    try:
        with pytest.raises(DeviceGone, match=r"local-2: no sign of life"):
            handle.wait()
    finally:
        process.resume()


def test_a_plan_larger_than_a_device_is_refused_before_anything_is_sent(home):
    from dataclasses import replace

    _, model = make_model("mlp")
    plan = replace(make_plan(model, ((A,), (4,)), micro_batch=4), peak_bytes={A: 2**55})
    with pytest.raises(OutOfMemory, match="local-1") as caught:
        home.deploy(plan, model).wait()
    assert caught.value.facts["needed_bytes"] == 2**55
    assert 0 < caught.value.facts["available_bytes"] < 2**55


def test_a_device_that_is_not_in_this_home_is_named(home):
    _, model = make_model("mlp")
    with pytest.raises(DeviceGone, match=r"fridge.*not in this home"):
        home.deploy(make_plan(model, (("fridge",), (4,)), micro_batch=4), model).wait()


def test_an_unpaired_notebook_is_told_so(process_home, tmp_path):
    address = str(process_home.devices[A].addresses[0])
    with potluck.Home(peers=[address], state=tmp_path / "stranger") as stranger:
        (member,) = stranger.devices.values()
        assert member.status == "not paired"
        _, model = make_model("mlp")
        with pytest.raises(NotPaired, match="pair"):
            stranger.profile(model).wait()
        stranger.trust(address, process_home.devices[A].key, name="a")
        assert stranger.devices["a"].status == "not paired"
        with pytest.raises(NotPaired, match="a: it does not know this notebook"):
            stranger.profile(model).wait()


def test_another_key_at_a_known_address_is_not_trusted(process_home, tmp_path):
    address = str(process_home.devices[A].addresses[0])
    with potluck.Home(state=tmp_path / "stranger") as stranger:
        member = stranger.trust(address, process_home.devices[B].key, name="a")
        assert isinstance(member.error, IdentityChanged)
        assert member.status == "identity changed"


def test_connections_that_break_in_their_handshake_are_no_other_key(process_home, tmp_path):
    """So it looks where a device is too busy to answer in time, or where its agent is just being
    started again.
    """
    first, dropped = process_home.devices[A].addresses[0].port, []

    async def passing(offset, reader, writer):
        if dropped.count(offset) < 2:
            dropped.append(offset)
            writer.close()
            return
        ends = reader, writer, *await asyncio.open_connection("127.0.0.1", first + offset)
        await asyncio.gather(*(pump(*pair) for pair in ((ends[0], ends[3]), (ends[2], ends[1]))))

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def open_between():
        for base in range(24_000, 32_000, 4):
            with suppress(OSError):
                return base, [
                    await asyncio.start_server(partial(passing, offset), "127.0.0.1", base + offset)
                    for offset in (0, 2, 3)
                ]
        raise OSError("no free ports")

    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        base, servers = runner.run(open_between())
        with potluck.Home(state=tmp_path) as stranger:
            trusting = pool.submit(
                stranger.trust, f"127.0.0.1:{base}", process_home.devices[A].key, name="a"
            )
            runner.run(
                asyncio.wait_for(asyncio.wrap_future(trusting, loop=runner.get_loop()), TIMEOUT_S)
            )
            # its key was right: it answered, and does not know us
            assert stranger.devices["a"].status == "not paired"
        assert len(dropped) >= 2
        for server in servers:
            server.close()


def test_nobody_there_says_what_to_do(tmp_path):
    _, model = make_model("mlp")
    with potluck.Home(state=tmp_path) as empty, pytest.raises(EmptyHome, match="doctor"):
        empty.profile(model).wait()


def test_a_port_where_nobody_listens_is_told_at_once(tmp_path, process_home):
    with potluck.Home(state=tmp_path) as stranger:
        member = stranger.trust("127.0.0.1:1", process_home.devices[A].key, name="ghost")
        assert isinstance(member.error, DeviceGone)


SCRIPT = """
import sys, potluck, potluck.testing.faults
home = potluck.Home.local(2)
agents = potluck.testing.faults.agents_of(home)
print(*[agents.process(name).pid for name in home.devices], agents.directory, flush=True)
sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, None], ids=["kill -9", "Ctrl-C", "end of script"]
)
def test_no_process_outlives_the_script(number):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    *pids, directory = script.stdout.readline().split()
    family = psutil.Process(script.pid).children(recursive=True)
    assert {process.pid for process in family} > {*map(int, pids)}
    if number is not None:
        os.kill(script.pid, number)
    else:
        script.stdin.close()
    script.wait(TIMEOUT_S)
    script.stdin.close()
    script.stdout.close()
    _, alive = psutil.wait_procs(family, TIMEOUT_S)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert not os.path.exists(directory)


@pytest.mark.long
def test_a_run_closes_in_the_middle_of_a_step_however_long_that_takes(monkeypatch):
    """This one would take a quarter of a minute."""
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    x, y = torch.randn(32, 512), torch.randint(0, 512, (32,))
    loss = torch.nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4])
    with potluck.Home.lab([Spec(name=A, slowdown=1000)]) as home:
        plan = make_plan(model, ((A,), (4,)), micro_batch=4, n_micro_batches=8)
        run = home.deploy(plan, model).wait()
        engine, begun = engine_of(run), threading.Event()
        steps = []
        result = engine.result

        def watched(step):
            steps.append(step)
            begun.set()
            return result(step)

        monkeypatch.setattr(engine, "result", watched)
        fit = run.fit((x, y))
        assert begun.wait(TIMEOUT_S)
        run.close()
        with pytest.raises(UserError, match="it was closed"):
            fit.wait()
        assert steps[0].exception() is not None  # nobody waited for it


def test_a_closed_home_says_so_and_closes_twice():
    home = potluck.Home.local(1)
    _, model = make_model("mlp")
    home.close()
    home.close()
    with pytest.raises(potluck.errors.HomeError, match="closed"):
        home.profile(model, rows=(1,)).wait()
