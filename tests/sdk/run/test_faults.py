"""An agent, a worker or the notebook is killed in the middle of something: that ends with a named
cause, or goes on and equals one machine where it can; the home can be used again, and nothing is
left behind.

Where it happens is chosen by `KillAt`. Each time, an agent is killed while a plan is deployed and
while requests are copied, and a worker in training; over plain links, as `tests/sdk/lab` kills
devices in namespaces, and more often in memory (`test_recovery.py`, `test_requests_survive.py`). In
`make test-long` any two of links, moment,
device, victim and event meet in one case: all 644 of them would take two hours on two cores.
"""

import os
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import product

import psutil
import pytest
from tests.sdk.lab.homes import interfaces
from tests.sdk.lab.test_command import are_gone
from tests.sdk.offload.pairs import covering
from tests.sdk.run import fault_injection
from tests.sdk.run.conftest import more_steps
from tests.sdk.run.test_switching import (
    FOREVER,
    A,
    C,
    check_equal,
    make_data,
    make_model,
    make_net,
    plan_of,
    stop,
)
from tests.timeouts import TIMEOUT_S

from potluck.errors import DeviceGone, PotluckError, Refused, WorkerFailed
from potluck.lab.namespaces import missing
from potluck.testing.faults import agents_of
from potluck.testing.internals import engine_of

torch = pytest.importorskip("torch")
SPACES = pytest.mark.skipif(bool(missing()), reason=missing() or "possible")
PLAIN, SPACED = "plain", "namespaces"
# events of the agent after the moment: a program of these plans is some 4 to 20 of them
AFTER = (0, 1, 3, 8)
OLD, NEW = "ab", "abc"


def some(cases, *chosen):
    """The chosen ones each time, in the long tests as many more as let all pairs meet."""
    assert set(chosen) <= set(cases)
    marks = {case: [pytest.mark.long] for case in covering(cases)} | {case: [] for case in chosen}
    tried = [case for case in cases if case in marks]
    return [
        pytest.param(*case, marks=[*marks[case], *([SPACES] if SPACED in case else [])])
        for case in tried
    ]


def everywhere(moments, devices=(A, C)):
    return list(product((PLAIN, SPACED), moments, devices, ("worker", "agent"), AFTER))


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Homes by their links, opened when they are first asked for."""
    opened, family = {}, []
    with pytest.MonkeyPatch.context() as patch:
        path = filter(None, [str(fault_injection.AGENT_SIDE), os.environ.get("PYTHONPATH")])
        patch.setenv("PYTHONPATH", os.pathsep.join(path))

        def home(links):
            if links not in opened:
                opened[links] = fault_injection.open_home(links, tmp_path_factory.mktemp("home"))
                family.extend(
                    fault_injection.family_of(
                        agents_of(opened[links]).process(n).pid for n in fault_injection.NAMES
                    )
                )
            return opened[links]

        yield home
    directories = [agents_of(one).directory for one in opened.values()]
    for one in opened.values():
        one.close()
    assert not psutil.wait_procs(family, TIMEOUT_S)[1]
    assert not any(directory.exists() for directory in directories)


@pytest.fixture
def home(homes, request):
    return homes(request.param)


@pytest.fixture(scope="module")
def model():
    return make_model()


def error_of(attempt):
    """How it ended; None where it went well."""
    try:
        attempt()
    except PotluckError as error:
        return error
    return None


def check_named(error, device):
    assert isinstance(error, DeviceGone | WorkerFailed | Refused)
    assert error.device == device
    assert device in str(error)
    causes = "killed from outside", "connection", "Goodbye", "nobody answers"
    assert any(cause in str(error) for cause in causes)


def check_usable(home, model):
    """All devices have forgotten what was there: a plan that takes all their memory can be
    deployed, and trains.
    """
    memory = {name: home.devices[name].capability["memory_bytes"] for name in fault_injection.NAMES}
    run = home.deploy(replace(plan_of(model, NEW), peak_bytes=memory), model).wait()
    run.fit(make_data()).wait()
    check_equal(run)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("home", "moment", "device", "victim", "after"),
    some(
        everywhere(fault_injection.DEPLOYING, (A,)),
        (PLAIN, "committing the first plan", A, "agent", 0),
    ),
    indirect=["home"],
)
def test_killed_while_a_plan_is_deployed(home, model, moment, device, victim, after):
    with fault_injection.KillAt(
        home, fault_injection.DEPLOYING[moment], device, victim, after
    ) as kill:
        error = error_of(
            lambda: (
                home.deploy(plan_of(model, OLD), model, protect=False)
                .wait()
                .fit(make_data())
                .wait()
            )
        )
        assert kill.has_killed
        check_named(error, device)
    check_usable(home, model)


@pytest.mark.parametrize(
    ("home", "moment", "device", "victim", "after"),
    some(everywhere(fault_injection.TRAINING), (PLAIN, "training", A, "worker", 8)),
    indirect=["home"],
)
def test_killed_in_training_and_its_switch(home, model, moment, device, victim, after):
    kill = fault_injection.KillAt(home, fault_injection.TRAINING[moment], device, victim, after)
    deployed = home.deploy(plan_of(model, OLD), model, protect=False)
    with kill, closing(deployed.wait()) as run:
        at_work = run.fit(make_data(), epochs=FOREVER)
        error = error_of(lambda: run.switch(plan_of(model, NEW)).wait())
        assert error is None or run.plan == plan_of(model, OLD) or engine_of(run).failed
        if error is not None:
            check_named(error, device)
        if device in run.plan.devices:
            check_named(error_of(lambda: at_work.wait()), device)
        else:
            more_steps(run, at_work, 2)
            stop(run, at_work)
            check_equal(run)
        assert kill.has_killed
    check_usable(home, model)


@pytest.mark.long
@pytest.mark.parametrize(
    ("home", "moment", "device", "victim", "after"),
    some(everywhere(fault_injection.REQUESTS), (PLAIN, "copying", C, "agent", 1)),
    indirect=["home"],
)
def test_killed_while_requests_are_answered(home, model, moment, device, victim, after):
    """Every request under way is answered once, and rightly, by those that are left."""
    x = make_data()[0]
    expected = make_net().eval()(make_data()[0]).detach()
    over = threading.Event()
    answered = []

    def ask(run):
        while not over.is_set():
            out = run(x[:8])
            assert torch.allclose(out, expected[:8], atol=1e-6)
            answered.append(out)

    kill = fault_injection.KillAt(home, fault_injection.REQUESTS[moment], device, victim, after)
    with kill, closing(home.deploy(plan_of(model, OLD, training=False), model).wait()) as run:
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(error_of, lambda: ask(run)) for _ in range(2)]
            try:
                error = error_of(lambda: run.switch(plan_of(model, NEW, training=False)).wait())
                before = len(answered)
                while not (kill.has_killed and len(answered) >= before + 4) and not any(
                    future.done() for future in asking
                ):
                    time.sleep(0)
            finally:
                over.set()
            ends = [future.result() for future in asking]
        assert kill.has_killed
        if error is not None:
            check_named(error, device)
        assert ends == [None, None]
        assert engine_of(run).n_requests >= len(answered)
    check_usable(home, model)


# --- the notebook ---------------------------------------------------------------------------------

NOTEBOOK = list(
    product(
        (PLAIN, "relay", SPACED), (*fault_injection.DEPLOYING, *fault_injection.TRAINING), (0, 5)
    )
)


@pytest.mark.long
@pytest.mark.parametrize(("links", "moment", "after"), some(NOTEBOOK, (SPACED, "going over", 0)))
def test_killing_the_notebook_leaves_nothing(tmp_path, links, moment, after):
    mark = uuid.uuid4().hex
    temporary = tmp_path / "temporary"
    before = interfaces()
    temporary.mkdir()
    notebook = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.sdk.run.fault_injection",
            moment,
            str(after),
            links,
            str(tmp_path),
        ],
        env=os.environ | {"TMPDIR": str(temporary), "POTLUCK_TEST": mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    directory, *pids = notebook.stdout.readline().split()
    came = interfaces() - before
    family = psutil.Process(notebook.pid).children(recursive=True)
    assert {process.pid for process in family} > {*map(int, pids)}
    notebook.stdout.close()
    assert notebook.wait(TIMEOUT_S) == -9
    assert not psutil.wait_procs(
        family + [p for p in psutil.process_iter() if carries(p, mark)], TIMEOUT_S
    )[1]
    assert not os.path.exists(directory)
    # torch's own
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []
    assert links != SPACED or are_gone(came)


def carries(process, mark):
    """Whether a process was started by ours, or by one that it started."""
    try:
        return process.environ().get("POTLUCK_TEST") == mark
    except psutil.Error:
        return False
