"""What a user meets when something is not as it should be, with real agents: a clear error, and
nothing lost.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.commands import doctor
from potluck.discover.addresses import candidates
from potluck.discover.keyring import KnownDevice
from potluck.display import tables
from potluck.errors import (
    FileError,
    HomeError,
    IdentityChanged,
    OutOfMemory,
    PairingError,
    PlanError,
    ProtocolError,
    WorkerFailed,
)
from potluck.sessions.agent_specs import Spec
from potluck.sessions.events import Address
from potluck.testing.faults import agents_of
from potluck.testing.memory import memory_home
from potluck_agent import control_files as agent_state

psutil = pytest.importorskip("psutil")
torch = pytest.importorskip("torch")

PLAIN = "import potluck_agent.__main__"
MAJOR_9 = (
    "import potluck_wire.version as v; v.VERSION = (9, 0); v.agree.__defaults__ = "
    "v.show.__defaults__ = ((9, 0),); " + PLAIN
)


@contextmanager
def agent(directory, *arguments, name="jetson", port=0, code=PLAIN, backends="onnxruntime"):
    """A real agent; what it says of itself when it is ready. Only some tests need torch there."""
    command = [
        sys.executable,
        "-c",
        code,
        "start",
        "--name",
        name,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
    ]
    command += ["--state", str(directory), "--json", "--no-mdns", "--memory", "256Mi", *arguments]
    command += ["--threads", "1", "--device", "cpu", "--backends", backends]
    command += ["--parent-pid", str(os.getpid())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def place(ready):
    return f"127.0.0.1:{ready['port']}"


def other_than(code):
    return "00000000" if code != "00000000" else "11111111"


# --- pairing --------------------------------------------------------------------------------------


@pytest.mark.long
def test_three_wrong_codes_close_the_window_and_leave_no_trace(tmp_path):
    with (
        agent(tmp_path / "agent", "--pair") as ready,
        potluck.Home(state=tmp_path / "home") as home,
    ):
        for words in ("2 tries are left", "1 try is left", "The window is closed now"):
            with pytest.raises(PairingError, match=words):
                home.pair(place(ready), other_than(ready["code"]))
        with pytest.raises(PairingError, match="potluck agent pair"):
            home.pair(place(ready), ready["code"])
        assert not home.devices
        assert not (tmp_path / "home" / "devices.json").exists()
        assert not (tmp_path / "agent" / "peers.json").exists()


@pytest.mark.long
def test_a_code_that_has_expired_is_told(tmp_path):
    with agent(tmp_path / "agent") as ready, potluck.Home(state=tmp_path / "home") as home:
        agent_state.ask_window(tmp_path / "agent", "12345678", 0.0)
        # the agent takes it several times a second
        while (tmp_path / "agent" / agent_state.WINDOW).exists():
            assert home.key
        with pytest.raises(
            PairingError, match=r"expired.*three minutes|closed.*potluck agent pair"
        ):
            home.pair(place(ready), "12345678")
        assert not home.devices


@pytest.mark.long
def test_a_reinstalled_device_is_not_trusted_until_it_is_forgotten_and_paired_again(tmp_path):
    with potluck.Home(state=tmp_path / "home") as home, agent(tmp_path / "old", "--pair") as ready:
        home.pair(place(ready), ready["code"])
    with (
        agent(tmp_path / "new", "--pair", port=ready["port"]) as again,
        potluck.Home(peers=[place(ready)], state=tmp_path / "home") as home,
    ):
        member = home.devices["jetson"]
        assert member.status == "identity changed"
        assert isinstance(member.error, IdentityChanged)
        assert "potluck forget" in str(member.error)
        home.forget("jetson")
        assert home.pair(place(again), again["code"]).status == "ready"


@pytest.mark.long
def test_another_major_version_of_the_protocol_is_named_on_both_doors(tmp_path):
    with (
        potluck.Home(state=tmp_path / "home") as home,
        agent(tmp_path / "agent", "--pair", f"--trust={home.key}:ada", code=MAJOR_9) as ready,
    ):
        with pytest.raises(ProtocolError, match=r"9\.0"):
            home.pair(place(ready), ready["code"])
        member = home.trust(place(ready), ready["key"], name="jetson")
        assert isinstance(member.error, ProtocolError)
        assert "version" in str(member.error)


@pytest.mark.long
def test_of_two_homes_with_the_same_keys_the_second_is_refused_and_the_first_goes_on(tmp_path):
    """A device knows a notebook by its key: the second to close would end what the first one
    runs.
    """
    with potluck.Home(state=tmp_path) as first:
        other = f"import potluck; potluck.Home(state={str(tmp_path)!r})"
        output = subprocess.run(
            [sys.executable, "-c", other], capture_output=True, text=True, check=False
        ).stderr
        assert f"another one on this computer (process {os.getpid()}) has open" in output
        assert "Home(state=FOLDER)" in output
        assert first.key
    with potluck.Home(state=tmp_path) as again:
        assert again.key == first.key


@pytest.mark.long
def test_a_cell_that_opens_a_home_may_run_twice_unless_something_is_under_way(tmp_path):
    model = potluck.Model.from_torch(torch.nn.Linear(4, 2), torch.zeros(2, 4), name="one")
    with agent(tmp_path / "agent", "--pair") as ready:
        first = potluck.Home(peers=[place(ready)], state=tmp_path / "home")
        name = first.pair(place(ready), ready["code"]).name
        with potluck.Home(peers=[place(ready)], state=tmp_path / "home") as second:
            assert repr(first) == "<Home, closed>"
            run = second.deploy(
                make_plan(model, ((name,), (2,)), micro_batch=2, training=False), model
            ).wait()
            with pytest.raises(HomeError, match=r"this program has open.*it has a run"):
                potluck.Home(state=tmp_path / "home")
            assert run(torch.zeros(2, 4)).shape == (2, 2)  # and nothing has become of it
            run.close()
            with potluck.Home(state=tmp_path / "home") as third:
                assert repr(second) == "<Home, closed>"
                assert third.key == first.key


@pytest.mark.long
def test_two_devices_of_one_name_get_two_names_and_work_together(tmp_path, monkeypatch):
    monkeypatch.setenv("POTLUCK_HOME", str(tmp_path / "cache"))
    with (
        agent(tmp_path / "a", "--pair", backends="torch") as one,
        agent(tmp_path / "b", "--pair", backends="torch") as two,
        potluck.Home(peers=[place(one), place(two)], state=tmp_path / "home") as home,
    ):
        home.pair_all({place(one): one["code"], place(two): two["code"]})
        assert set(home.devices.ready) == set(home.devices) == {"jetson", "jetson-2"}
        _, model = make_model("mlp")
        plan = make_plan(
            model, (("jetson",), (4,)), (("jetson-2",), (4,)), micro_batch=4, n_micro_batches=2
        )
        assert len(home.deploy(plan, model).wait().fit(make_data("mlp", 8)).wait().losses) == 1

        home.profile(model, train=False, rows=(1,), repeats=1).wait()
        kept = {p: p.read_bytes() for p in (tmp_path / "cache" / "profiles").iterdir()}
        assert len(kept) == 4  # of each device its layers, and what a call takes
        for bad in kept:
            before = {path: path.read_bytes() for path in kept}
            bad.write_text("{")
            with pytest.warns(UserWarning, match=bad.name):
                profile = home.profile(model, train=False, rows=(1,), repeats=1).wait()
            assert any(bad.name in note for note in profile.notes)
            assert json.loads(bad.read_text())["modes"]
            assert sum(path.read_bytes() == before[path] for path in kept) == 2  # the other's


def test_a_known_device_is_looked_for_under_every_like_name():
    old, own, like, other = (Address(host=f"192.168.1.{i}", port=47600) for i in range(4))
    known = KnownDevice(name="phone-2", key="k", addresses=(old,))
    assert candidates(known, {"phone": (like,), "phone-2": (own,), "tv": (other,)}) == (
        own,
        old,
        like,
    )
    assert candidates(known, {"tv": (other,)}) == (old,)


@pytest.mark.parametrize("name", ["devices.json", "notebook.json"])
def test_a_corrupt_file_of_keys_is_named_and_left_as_it_is(tmp_path, name):
    (tmp_path / name).write_text("{")
    with pytest.raises(FileError, match=name):
        potluck.Home.discover(0.05, state=tmp_path)
    assert (tmp_path / name).read_text() == "{"


def test_a_name_that_is_no_device_and_no_address_is_told_who_is_here(tmp_path):
    with potluck.Home(peers=["127.0.0.1:1"], state=tmp_path) as home:
        with pytest.raises(HomeError, match="nobody pairs"):
            home.pair("127.0.0.1:1", "12345678")
        with pytest.raises(potluck.errors.UserError, match=r"127\.0\.0\.1:1"):
            home.pair("a:b", "12345678")


# --- running --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_home():
    """A device with little memory, and one that has enough."""
    torch.set_num_threads(1)
    with potluck.Home.lab(
        [Spec(name="tiny", memory="64 MiB"), Spec(name="big")], extra=["--hang", "5"]
    ) as opened:
        yield opened


def wide_model():
    """36 MiB of weights; training needs more than `tiny` has."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Linear(8, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 4)
    )
    x, y = make_data("mlp", 6)
    return potluck.Model.from_torch(net, x, loss=nn.functional.cross_entropy, example_targets=y)


@pytest.mark.long
def test_a_plan_that_does_not_fit_says_what_it_needs_and_what_there_is(small_home):
    model = wide_model()
    with pytest.raises(
        OutOfMemory, match=r"tiny: the plan needs .* MiB there; 64\.0 MiB are available"
    ) as caught:
        small_home.deploy(make_plan(model, (("tiny",), (4,)), micro_batch=4), model).wait()
    assert caught.value.facts["needed_bytes"] > caught.value.facts["available_bytes"] == 64 * 2**20


def test_a_plan_for_an_optimizer_that_is_not_named_at_deploy_says_so():
    """What SGD leaves free is not enough for AdamW, which is taken where none is given."""
    nn = torch.nn
    net = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 4))
    x, y = make_data("mlp", 6)
    model = potluck.Model.from_torch(net, x, loss=nn.functional.cross_entropy, example_targets=y)
    frugal = potluck.Training(batch=4, optimizer_copies=0)
    with memory_home([Spec(name="a")]) as home:
        profile = home.profile(model, rows=(1, 4), repeats=1).wait()
        needed = potluck.plan(profile, frugal).best.peak_bytes["a"]
    with memory_home([Spec(name="a", memory=needed + 2**16)]) as home:
        plan = potluck.plan(home.profile(model, rows=(1, 4), repeats=1), frugal).best
        with pytest.raises(OutOfMemory, match=r"keeps less than AdamW.*optimizer=") as caught:
            home.deploy(plan, model).wait()
        assert caught.value.facts["needed_bytes"] > caught.value.facts["available_bytes"]
        home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait().close()


@pytest.mark.long
def test_a_device_too_small_for_a_layer_is_left_out_and_problem_plan_and_refusal_say_so(small_home):
    model = wide_model()
    with pytest.warns(UserWarning, match="tiny is left out"):
        profile = small_home.profile(model, rows=(2,), repeats=1).wait()
    assert [device.name for device in profile.devices] == ["big"]
    workload = potluck.Training(batch=4, micro_batch=4)
    why = profile.problem(workload).excluded["tiny"]
    assert re.match(r"was left out of the profile \(tiny: it has too little memory: train-\d", why)
    plan = potluck.plan(profile, workload).best
    assert set(plan.devices) == {"big"}
    assert plan.unused == {"tiny": f"it {why}"}
    with pytest.raises(PlanError, match="tiny: it was left out of the profile"):
        potluck.judge(
            replace(plan, stages=tuple(replace(s, devices=("tiny",)) for s in plan.stages)), profile
        )
    with pytest.raises(potluck.errors.Infeasible, match="tiny was left out of the profile"):
        potluck.plan(profile, workload, potluck.QoE(memory_bytes={"big": 2**20}))


class Exploding(torch.nn.Module):
    def forward(self, x):
        return x.unsqueeze(-1).expand(-1, -1, 1_500_000).exp().sum(-1)


@pytest.mark.long
def test_a_worker_out_of_memory_ends_the_run_with_its_cause_and_its_agent_lives(small_home):
    x, _ = make_data("mlp", 4)
    model = potluck.Model.from_torch(torch.nn.Sequential(torch.nn.Linear(8, 8), Exploding()), x)
    run = small_home.deploy(
        make_plan(model, (("tiny",), (4,)), micro_batch=4, training=False), model, protect=False
    ).wait()
    with pytest.raises(OutOfMemory, match=r"tiny.*aten\.exp"):
        run(x)
    assert works(small_home, "tiny")


@pytest.mark.long
def test_a_worker_that_hangs_ends_the_run_with_its_cause_and_its_agent_lives(small_home):
    _, model = make_model("mlp")
    plan = make_plan(model, (("tiny",), (4,)), micro_batch=4)
    run = small_home.deploy(plan, model, protect=False).wait()
    handle = run.fit(make_data("mlp", 8), epochs=1_000_000)
    (worker,) = agents_of(small_home).workers("tiny")
    worker.suspend()
    with pytest.raises(WorkerFailed, match=r"tiny.*no progress|tiny.*stopped making progress"):
        handle.wait()
    assert works(small_home, "tiny")


def works(home, device):
    net, model = make_model("mlp")
    x, _ = make_data("mlp", 4)
    run = home.deploy(
        make_plan(model, ((device,), (4,)), micro_batch=4, training=False), model
    ).wait()
    with torch.no_grad():
        near = (run(x) - net(x)).abs().max().item() <= 1e-6
    run.close()
    return near


@pytest.mark.long
def test_a_device_that_can_compute_nothing_says_so_with_what_to_install(tmp_path, monkeypatch):
    """As a light install leaves it: it is found and paired, and no session of it ends with a
    riddle.
    """
    nothing = (
        "import potluck_agent.worker.arrays.backends as a; a.PACKAGES = {'torch': "
        "('no_such_package',)}; " + PLAIN
    )
    with (
        agent(tmp_path / "agent", "--pair", code=nothing, backends="torch") as ready,
        potluck.Home(peers=[place(ready)], state=tmp_path / "home") as home,
    ):
        member = home.pair(place(ready), ready["code"])
        assert member.status == "computes nothing"
        assert "it computes nothing: install torch or onnxruntime on it." in str(member.error)
        (row,) = tables.members([member]).rows
        assert row[-1] == "it computes nothing: install torch or onnxruntime on it"
        assert 'pip install ".[torch]"' in str(member.error)
        home.close()
        monkeypatch.setenv("POTLUCK_HOME", str(tmp_path / "home"))
        (checkup,) = doctor.sessions([place(ready)])
    assert "computes nothing" in checkup.what
    assert checkup.level == doctor.BAD
    assert 'pip install ".[torch]"' in checkup.remedy
