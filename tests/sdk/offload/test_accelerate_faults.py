"""A shared request is answered whatever becomes of the helper, the device's worker, or the values
in it.
"""

import threading
from concurrent.futures import Future

import pytest
from tests.sdk.graph.families import family
from tests.sdk.offload.accelerating import check, fast_of, wait_until
from tests.sdk.run.test_recovery import inject_after
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import PotluckError, RequestFailed
from potluck.offload import accelerated as fast_module
from potluck.offload import drift
from potluck.offload.deployment import OffloadDeployment
from potluck.offload.plan.search_spec import SearchSpec
from potluck.run.device_group import DeviceGroup
from potluck.sessions.agent_specs import Spec
from potluck.sessions.events import Send
from potluck.testing.faults import agents_of, memory_of
from potluck.testing.internals import link_of
from potluck.testing.memory import memory_home
from potluck_wire.messages import Measure, Probe

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nobody_asks")


class Picked(torch.nn.Module):
    """Which row of the table a pixel is, is computed: nobody can see beforehand that there is no
    such row.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = torch.nn.Embedding(8, 6), torch.nn.Conv2d(6, 3, 1)

    def forward(self, x):
        return self.out(self.table((x.abs() * 2).to(torch.int64)).permute(0, 3, 1, 2)), x


def test_a_request_that_fails_over_its_values_ends_alone_and_the_helper_still_helps(
    home, monkeypatch
):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, good = Picked().eval(), torch.rand(2, 9, 4)
    wrong = good.clone()
    wrong[0, 8, 1] = 99.0
    with torch.no_grad(), fast_of(home, net, good) as fast:
        fast.bytes_per_s = 1e8
        for _ in range(2):
            with pytest.raises(RequestFailed, match=r"local-.: .*look at the inputs"):
                fast(wrong)
            check(fast(good), net(good))
            assert set(fast.kept[-1][0].timelines) == {"local-1", "local-2"}
        assert (fast.failure, fast.stats.fallbacks) == (None, 0)


def test_a_request_that_fails_only_where_it_is_shared_is_answered_and_the_helper_is_loaded_again(
    home, monkeypatch
):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, good = Picked().eval(), torch.rand(2, 9, 4)
    wrong = {"input": torch.full((2, 9, 4), 99.0)}
    with torch.no_grad(), fast_of(home, net, good) as fast:
        fast.bytes_per_s = 1e8
        execute = DeviceGroup.execute
        with monkeypatch.context() as patch:
            patch.setattr(
                DeviceGroup,
                "execute",
                lambda group, epoch, *args, **more: execute(
                    group, epoch, *args, **(more | {"batch": wrong} if epoch else more)
                ),
            )
            check(fast(good), net(good))
        assert (type(fast.failure), fast.stats.fallbacks) == (RequestFailed, 1)
        wait_until(lambda: fast.is_helped)
        fast.bytes_per_s = 1e8
        check(fast(good), net(good))
        assert fast.stats.fallbacks == 1


@pytest.mark.long
def test_a_race_that_the_device_lost_makes_no_later_request_late(home, monkeypatch):
    """It still computes what it began alone: what waits for that is not the helper's doing, and
    begins no new race.
    """
    monkeypatch.setattr(fast_module, "LATE", 0.0)
    monkeypatch.setattr(fast_module, "LATE_S", 0.0)
    net, x = family("vgg")
    with torch.no_grad(), fast_of(home, net, x) as fast:
        expected = net(x)
        start = OffloadDeployment.start
        alone = []

        def start_held(loaded, compiled, named):
            if compiled is not fast.alone:
                return start(loaded, compiled, named)
            alone.append(Future())
            return alone[-1]

        monkeypatch.setattr(OffloadDeployment, "start", start_held)
        for n_races in (1, 2):
            for _ in range(3):
                fast.bytes_per_s = 1e8
                check(fast(x), expected)
                assert fast.kept[-1][1] is not fast.alone
            assert len(alone) == n_races
            alone[-1].set_exception(PotluckError("it is over"))


@pytest.fixture(scope="module")
def robot_home(request):
    """A robot, and a server that is so many times slower than it."""
    torch.set_num_threads(1)
    with potluck.Home.lab(
        [Spec(name="robot"), Spec(name="server", slowdown=request.param)]
    ) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("robot_home", [200], indirect=True)
def test_a_request_is_answered_when_the_helper_dies_and_it_helps_again_when_it_is_back(
    robot_home, monkeypatch
):
    # it takes its time, and shall not be taken for late
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(robot_home, net, x, slow_s=1.0, fast_s=1e-3) as fast:
        fast.bytes_per_s = 1e8
        assert fast.table.at(1e8).program is not None
        answers = []
        begun = threading.Event()
        start = OffloadDeployment.start

        def start_told(*request):
            future = start(*request)
            begun.set()
            return future

        monkeypatch.setattr(OffloadDeployment, "start", start_told)
        request = threading.Thread(target=lambda: answers.append(fast(x)))
        request.start()
        assert begun.wait(TIMEOUT_S)  # both have their orders; the helper takes its time
        agents_of(robot_home).kill("server")
        request.join(TIMEOUT_S)
        check(answers[0], expected)
        assert fast.kept[-1][1] is fast.alone
        assert fast.failure is not None
        check(fast(x), expected)  # it is not there from the start
        assert fast.kept[-1][1] is fast.alone

        agents_of(robot_home).restart("server")
        wait_until(lambda: fast.is_helped)

        def helps():
            fast.bytes_per_s = 1e8  # what is measured meanwhile may be slower
            check(fast(x), expected)
            return "server" in fast.kept[-1][0].timelines

        wait_until(helps)


@pytest.mark.few(1)
@pytest.mark.parametrize("for_good", [False, True])
def test_a_helper_that_wants_to_leave_is_let_go_and_helps_again_when_it_stays(for_good):
    net, x = Picked().eval(), torch.rand(2, 9, 4)
    with memory_home(2) as home, torch.no_grad(), fast_of(home, net, x) as fast:
        fast.bytes_per_s = 1e8
        lab = memory_of(home)
        lab.leave("local-2", "its battery is low", 1e6, for_good=for_good)
        wait_until(lambda: not fast.is_helped)
        check(fast(x), net(x))
        assert fast.kept[-1][1] is fast.alone
        if for_good:  # nothing of the model keeps it
            wait_until(lambda: not lab.is_there("local-2"))
            lab.restart("local-2")
        else:
            assert "its battery is low" in str(fast.failure)
            lab.stay("local-2")
        wait_until(lambda: fast.is_helped)
        check(fast(x), net(x))


@pytest.mark.long
@pytest.mark.parametrize("robot_home", [200], indirect=True)
def test_a_helper_that_hangs_makes_a_request_late_and_loses_none(robot_home):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(robot_home, net, x, slow_s=0.01, fast_s=1e-4) as fast:
        fast.bytes_per_s = 1e8
        agents_of(robot_home).freeze("server")
        check(fast(x), expected)
        assert fast.kept[-1][1] is fast.alone
        check(fast(x), expected)
        agents_of(robot_home).thaw("server")


@pytest.mark.long
@pytest.mark.parametrize("robot_home", [10], indirect=True)
def test_a_helper_that_lies_about_its_speed_is_found_out(robot_home, monkeypatch):
    monkeypatch.setattr(drift, "SHOWN", 1)
    net, x = family("vgg")
    with fast_of(robot_home, net, x, slow_s=2e-4, fast_s=1e-6) as fast:
        fast.bytes_per_s = 1e8
        assert fast.table.at(1e8).program is not None
        told_s = fast.explain(1e8).latency_s

        def found_out():
            fast.bytes_per_s = 1e8
            fast(x)
            return fast.table.at(1e8).program is None

        wait_until(found_out)
        assert fast.explain(1e8).latency_s != told_s
        fast(x)
        assert fast.stats.answers[-1].way == "alone"


def test_a_request_is_answered_when_the_devices_own_worker_dies_and_the_helper_helps_again(
    own_home,
):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(own_home, net, x) as fast:
        fast.bytes_per_s = 1e8
        memory_of(own_home).kill_worker("local-1")
        check(fast(x), expected)
        assert fast.stats.answers[-1].way == "alone"
        wait_until(lambda: fast.is_helped)
        check(fast(x), expected)


INJECTED = [
    (who, how, after) for who in (0, 1) for how in ("kill_worker", "kill") for after in range(40)
]
CASES = [case for case in INJECTED if case[:2] != (0, "kill")]  # without the device nobody answers


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("who", "how", "after"),
    [pytest.param(*case, marks=[] if case in CASES[3::23] else pytest.mark.long) for case in CASES],
)
def test_a_loss_at_any_message_of_shared_requests_changes_no_answer(
    own_home, monkeypatch, who, how, after
):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(own_home, net, x) as fast:
        fast.bytes_per_s = 1e8
        lab, name = memory_of(own_home), ("local-1", "local-2")[who]
        inject_after(own_home, [(after, lambda: getattr(lab, how)(name))])
        for _ in range(3):
            check(fast(x), expected)
        link_of(own_home).watch(None)
        assert len(fast.stats.answers) == 3


@pytest.mark.long
def test_closing_ends_a_search_that_is_under_way(home, monkeypatch):
    net, x = family("vgg")
    begun, ended = threading.Event(), threading.Event()
    with fast_of(home, net, x) as fast:

        def searches_on(self, sharing, *, report, **more):
            begun.set()
            try:
                while not ended.is_set():
                    report(1)
            finally:
                ended.set()

        monkeypatch.setattr(SearchSpec, "search", searches_on)
        monkeypatch.setattr(drift.DriftMonitor, "wrong", lambda _: {"local-1": 2.0})
        assert begun.wait(TIMEOUT_S)
        late = threading.Timer(TIMEOUT_S, ended.set)
        late.start()
        fast.close()
        late.cancel()
    assert str(fast.failure) == "this accelerated model is closed."


@pytest.mark.parametrize("lost", ["local-1", "local-2"])
@pytest.mark.parametrize("asked", [Measure, Probe])
def test_a_device_that_is_lost_while_it_is_measured_is_named(lost, asked):
    net, x = family("vgg")

    def fault(event, actions):
        if memory_of(home).is_there(lost) and any(
            isinstance(action, Send) and isinstance(action.message, asked) for action in actions
        ):
            memory_of(home).kill(lost)

    with memory_home(3) as home:
        link_of(home).watch(fault)
        with pytest.raises(PotluckError, match=lost):
            potluck.accelerate(net, x, helper=home["local-2"], device=home["local-1"]).wait()
