"""One request shared by real agents: the answer is the module's, at any bandwidth, whatever becomes of the helper."""

import threading
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from tests.sdk.graph.families import FAMILIES, as_onnx, family

import potluck
from potluck.errors import ModelError, RequestFailed, UserError
from potluck.graph.pace import Pace
from potluck.handle import Task
from potluck.lab.specs import Spec
from potluck.plan.rivals.shared_requests import WAYS
from potluck.plan.sharing.shareable import Shareable
from potluck.profile.measure import FLOOR_BYTES, device_of
from potluck.profile.network import network_of
from potluck.records import Inference, LayerCost, Problem
from potluck.run.sharing import accelerate as accelerate_module
from potluck.run.sharing import fast as fast_module
from potluck.run.sharing import speeds
from potluck.run.sharing.accelerate import accelerate
from potluck.run.sharing.fast import Fast
from potluck.run.sharing.store import SplitStore
from potluck.run.sharing.table import SplitCase

torch = pytest.importorskip("torch")

TOLERANCE = 1e-5  # relative to the largest; kernels for other sizes may sum in another order
BANDWIDTHS = (0.0, 3e5, 3e6, 1e8)
SOON_S = 30.0


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch):
    """These tests say what the bandwidth is; what the link really carries must not change it meanwhile."""
    monkeypatch.setattr(Fast, "_should_ask", lambda *_: False)


def case(home, net, x, slow_s=1e-3, fast_s=2e-4, **more):
    """As if every operator had been measured to take so long, so that sharing pays at some bandwidth."""
    model = net if isinstance(net, potluck.Model) else potluck.Model.from_torch(net, x)
    names = tuple(home.devices)
    capabilities = {name: home.devices[name].capability for name in names}
    cost = LayerCost(rows=(1,), forward_s=(slow_s,))
    problem = Problem(
        model="m", devices=tuple(device_of(name, capability) for name, capability in capabilities.items()),
        network=network_of(capabilities, {}), layers=model.layers(), workload=Inference(batch=len(x)),
        costs=dict.fromkeys(names, (cost,) * len(model.layers())),
    )  # fmt: skip
    shareable = Shareable(model.traced_line())
    paces = tuple(
        Pace(seconds=dict.fromkeys(shareable.values, s), fixed_s=dict.fromkeys(shareable.values, min(1e-5, s)))
        for s in (slow_s, *[fast_s] * (len(names) - 1))
    )
    return SplitCase(
        model=model, shareable=shareable, problem=problem, names=tuple(names), paces=paces,
        batch=len(x), lender=f"0/layers-0-{len(model.layers())}", **{"bandwidths": BANDWIDTHS, **more},
    )  # fmt: skip


def fast_of(home, net, x, **more):
    return Fast(home._link, home.devices, case(home, net, x, **more), tuple, None, Task())


def check(answers, expected):
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(answers, expected, strict=True):
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() <= TOLERANCE * max(1.0, float(wanted.abs().max()))


def check_every_entry(fast, x, expected):
    assert any(entry.program for entry in fast.table.entries)
    for entry in fast.table.entries:
        fast.bytes_per_s = entry.bytes_per_s
        check(fast(x), expected)
    assert fast.failure is None


@pytest.mark.parametrize("name", FAMILIES)
def test_the_answer_is_the_modules_at_every_bandwidth_and_within_the_memory_of_the_plan(home, name, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)  # a busy machine is no reason to answer alone
    net, x = family(name)
    with torch.no_grad():
        expected = net(x)
    with fast_of(home, net, x) as fast:
        assert any(entry.program for entry in fast.table.entries)
        for entry in fast.table.entries:
            fast.bytes_per_s = entry.bytes_per_s
            check(fast(x), expected)
            execution, compiled = fast.kept[-1]
            assert compiled is (entry.program.compiled if entry.program else fast.alone)
            for device, timeline in execution.timelines.items():
                assert timeline.peak_bytes <= fast.memory_bytes[device]
        assert fast.failure is None


@pytest.mark.parametrize("name", ["mobilenet", "detector"])
def test_an_onnx_file_is_shared_inside_its_operators(home, name, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, x = family(name)
    with torch.no_grad():
        expected = net(x)
    made = as_onnx(net, x)
    with fast_of(home, made, x) as fast:
        check_every_entry(fast, x, expected)


def test_rivals_answer_alike_on_the_same_devices_each_in_its_own_way(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, x = family("mobilenet")
    with torch.no_grad():
        expected = net(x)
    with fast_of(home, net, x) as fast:
        divided = {}
        for way in WAYS:
            with fast.like(way, deadline_s=1.0 if "thrift" in way else None) as other:
                other.bytes_per_s = 1e8
                check(other(x), expected)
                assert other.failure is None
                rows = other.explain(1e8).rows
                divided[way] = [sum(place in of for of in rows.values()) > 1 for place in range(99)]
                computing = {name for name, of in rows.items() if of}
                assert computing == {"device": {fast.device}, "helper": {fast.helpers[0]}}.get(way, computing)
        assert any(divided["greedy tiling"])
        assert not any(any(divided[way]) for way in WAYS if "cut" in way)
        with pytest.raises(UserError, match="There are device, helper"):
            fast.like("nobody")


def test_what_is_loaded_has_the_weights_once_and_goes_when_it_is_closed(home):
    net, x = family("vgg")
    n_bytes = sum(p.numel() * 4 for p in net.parameters())
    with fast_of(home, net, x) as fast:
        pieces = [piece for program in fast.table.programs for piece in program.pieces[fast.device]]
        assert len(pieces) > 2
        assert all(piece.lender == "0/layers-0-" + str(len(fast.model.layers())) for piece in pieces)
        assert n_bytes < fast.memory_bytes[fast.device] - FLOOR_BYTES < 2 * n_bytes + 2**20
    with pytest.raises(potluck.errors.HomeError, match="closed"):
        fast(x)


@pytest.mark.parametrize(
    ("x", "says"),
    [(torch.zeros(2, 3, 27, 19), r"float32 \[2 rows, 3, 27, 18\] is expected"), (torch.zeros(3, 3, 27, 18), "2 rows")],
    ids=["another shape", "more rows"],
)
def test_another_shape_than_the_examples_is_answered_with_what_is_expected(home, x, says):
    net, example = family("vgg")
    with fast_of(home, net, example) as fast, pytest.raises((ModelError, UserError), match=says):
        fast(x)


class Picked(torch.nn.Module):
    """Which row of the table a pixel is, is computed: nobody can see beforehand that there is no such row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = torch.nn.Embedding(8, 6), torch.nn.Conv2d(6, 3, 1)

    def forward(self, x):
        return self.out(self.table((x.abs() * 2).to(torch.int64)).permute(0, 3, 1, 2)), x


def test_a_request_that_fails_over_its_values_ends_alone_and_the_helper_still_helps(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
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


def test_a_request_that_fails_only_where_it_is_shared_is_answered_and_the_helper_is_loaded_again(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, good = Picked().eval(), torch.rand(2, 9, 4)
    wrong = {"input": torch.full((2, 9, 4), 99.0)}
    with torch.no_grad(), fast_of(home, net, good) as fast:
        fast.bytes_per_s = 1e8
        execute = fast._crew.execute
        with monkeypatch.context() as patch:
            patch.setattr(
                fast._crew,
                "execute",
                lambda *args, **more: execute(*args, **(more | {"batch": wrong} if args[0] else more)),
            )
            check(fast(good), net(good))
        assert (type(fast.failure), fast.stats.fallbacks) == (RequestFailed, 1)
        wait_until(lambda: fast.is_helped)
        fast.bytes_per_s = 1e8
        check(fast(good), net(good))
        assert fast.stats.fallbacks == 1


def test_three_lines_answer_as_the_module_does_in_its_own_structure(home):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = family("vgg")[0]

        def forward(self, x):
            y = self.net(x)
            return {"scores": y, "both": [y, y.softmax(-1)]}

    net, (_, x) = Named().eval(), family("vgg")
    with torch.no_grad():
        expected = net(x)
    fast = potluck.accelerate(net, x, helper=home["local-2"])
    y = fast(x)
    assert (fast.device, fast.helpers) == ("local-1", ("local-2",))
    assert list(y) == ["scores", "both"]
    check([y["scores"], *y["both"]], (expected["scores"], *expected["both"]))
    assert fast(torch.full_like(x, float("nan")))["scores"].isnan().all()
    assert fast.failure is None
    fast.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"helper": "local-2"}, "a device of a home is expected"),
        ({"device": "same"}, "different devices of one home"),
        ({"objective": "energy"}, "energy with a deadline"),
        ({"bandwidths": (1e6, 0.0)}, "bandwidths ascend from zero"),
        ({"example": None}, "an example of the input is needed"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_arguments_are_answered_with_what_was_expected(home, wrong, says):
    net, x = family("vgg")
    given = {"example": x, "helper": home["local-2"], **wrong}
    if wrong.get("device"):
        given["device"] = home["local-2"]
    with pytest.raises(UserError, match=says):
        accelerate(net, **given)


def test_a_model_for_sequences_of_any_length_is_refused_and_says_what_would_do(home):
    x = torch.randn(2, 6, 4)
    made = potluck.Model.from_torch(torch.nn.Linear(4, 3), x, sequence_dims=(1,))
    with pytest.raises(ModelError, match=r"one length of its sequence.*without sequence_dims"):
        accelerate(made, x, helper=home["local-2"])


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def robot_home(request):
    """A robot, and a server that is so many times slower than it."""
    torch.set_num_threads(1)
    with potluck.Home.lab([Spec(name="robot"), Spec(name="server", slowdown=request.param)]) as opened:
        yield opened


def wait_until(holds):
    limit_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < limit_s, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize("robot_home", [200], indirect=True)
def test_a_request_is_answered_when_the_helper_dies_before_or_in_it_and_it_helps_again_when_it_is_back(robot_home):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(robot_home, net, x, slow_s=1.0, fast_s=1e-3) as fast:
        fast.bytes_per_s = 1e8
        assert fast.table.at(1e8).program is not None
        answers = []
        before = fast.n_steps
        request = threading.Thread(target=lambda: answers.append(fast(x)))
        request.start()
        wait_until(lambda: fast.n_steps > before)  # both have their orders; the helper takes its time
        robot_home._lab.agents.kill("server")
        request.join(SOON_S)
        check(answers[0], expected)
        assert fast.kept[-1][1] is fast.alone
        assert fast.failure is not None
        check(fast(x), expected)  # it is not there from the start
        assert fast.kept[-1][1] is fast.alone

        robot_home._lab.agents.restart("server")
        wait_until(lambda: fast.is_helped)
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        assert set(fast.kept[-1][0].timelines) >= {"server"}


@pytest.mark.parametrize("robot_home", [200], indirect=True)
def test_a_helper_that_hangs_makes_a_request_late_and_loses_none(robot_home):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(robot_home, net, x, slow_s=0.01, fast_s=1e-4) as fast:
        fast.bytes_per_s = 1e8
        robot_home._lab.agents.freeze("server")
        check(fast(x), expected)
        assert fast.kept[-1][1] is fast.alone
        check(fast(x), expected)
        robot_home._lab.agents.thaw("server")


@pytest.mark.parametrize("robot_home", [10], indirect=True)
def test_a_helper_that_lies_about_its_speed_is_found_out(robot_home, monkeypatch):
    monkeypatch.setattr(speeds, "SHOWN", 1)
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


@pytest.mark.parametrize("robot_home", [1], indirect=True)
def test_a_request_is_answered_when_the_devices_own_worker_dies_and_the_helper_helps_again(robot_home):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(robot_home, net, x) as fast:
        fast.bytes_per_s = 1e8
        for worker in psutil.Process(robot_home._lab.agents.process("robot").pid).children(recursive=True):
            worker.kill()
        check(fast(x), expected)
        assert fast.stats.answers[-1].way == "alone"
        wait_until(lambda: fast.is_helped)
        check(fast(x), expected)


def test_the_bandwidth_is_asked_for_while_the_device_answers_alone_so_that_help_comes_back(home, monkeypatch):
    monkeypatch.undo()  # here somebody asks
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        fast._heard(10**7, 1e3)  # next to nothing
        assert fast.table.at(fast.bytes_per_s).program is None
        wait_until(lambda: fast.table.at(fast.bytes_per_s).program)


def test_a_device_of_its_own_is_started_where_none_of_the_home_is_here_and_ends_with_it(home, monkeypatch):
    monkeypatch.setattr(accelerate_module, "platform", SimpleNamespace(node=lambda: "elsewhere"))
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with accelerate(net, x, helper=home["local-2"], bandwidths=(0.0, 1e8)).wait() as fast:
        assert fast.device == "this-machine"
        assert torch.allclose(fast(x), expected, atol=1e-4)
    assert "this-machine" not in home.devices


def test_under_a_deadline_the_device_spends_fewer_joules(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    known = case(home, net, x, bandwidths=(0.0, 1e8))
    device, helper = known.problem.devices
    powered = replace(device, idle_w=1.0, busy_w=9.0, radio_w=0.5)
    soon = replace(known, problem=replace(known.problem, devices=(powered, helper)))
    fastest = soon.search()[-1][1]
    thrifty = replace(soon, deadline_s=2 * fastest.latency_s)
    with Fast(home._link, home.devices, thrifty, tuple, None, Task()) as fast:
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        split = fast.table.at(1e8).split
        assert fast.stats.answers[-1].joules > 0
        assert split.energy_j < fastest.energy_j
        assert split.latency_s <= thrifty.deadline_s


# --- what it takes, and what it tells ---------------------------------------------------------------------------------


def test_zero_bandwidth_is_answered_alone_and_says_so(home):
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        fast.bytes_per_s = 0.0
        fast(x)
        assert fast.stats.entries == {"alone": 1}
        assert "sharing does not pay: local-1 answers alone" in repr(fast.explain(0.0))


def test_a_table_is_found_again_for_the_same_model_and_times_alone_and_made_anew_where_it_is_corrupt(
    home, tmp_path, monkeypatch
):
    searched = []
    search = SplitCase.search
    monkeypatch.setattr(SplitCase, "search", lambda self: searched.append(self) or search(self))
    store, (net, x), (other, y) = SplitStore(tmp_path), family("vgg"), family("mobilenet")
    first = case(home, net, x)
    made = store.table(first)
    again = store.table(case(home, net, x))
    assert [(e.bytes_per_s, e.split) for e in again.entries] == [(e.bytes_per_s, e.split) for e in made.entries]
    assert [p.name for p in again.programs] == [p.name for p in made.programs]
    assert len(searched) == 1
    store.table(case(home, net, x, fast_s=1e-4))
    store.table(case(home, other, y))
    assert len(searched) == 3
    whole = store.path(first).read_bytes()
    for spoilt in (
        b"",
        b"[]",
        b'{"entries": []}',
        b'{"entries": 3}',
        whole[:-9],
        whole.replace(b'"tiles": ', b'"tiles": -'),
    ):
        store.path(first).write_bytes(spoilt)
        assert store.table(first).entries[-1].split == made.entries[-1].split
        assert store.path(first).read_bytes() == whole
    assert len(searched) == 9


def test_a_model_without_rows_is_cut_between_its_operators_and_says_so(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    x = torch.randn(2, 6)
    with torch.no_grad(), fast_of(home, net, x) as fast:
        fast.bytes_per_s = 1e8
        check(fast(x), net(x))
        assert fast.stats.answers[-1].way.startswith("share-")
        assert "no operator of this model can compute some rows" in repr(fast.explain(1e8))


def test_stats_and_explanation_show_themselves(home, tmp_path, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        for fast.bytes_per_s in (0.0, 3e6):
            fast(x)
        stats, account = fast.stats, fast.explain(3e6)
    assert (stats.requests, stats.fallbacks, len(stats.entries)) == (2, 0, 2)
    assert stats.prediction_error_frac > 0
    assert stats._repr_html_().count("<svg") == 1
    assert "2 requests" in repr(stats)
    shares = account.rows["local-1"], account.rows["local-2"]
    assert all(rows for rows in shares)
    assert account._repr_html_().count("<svg") == 1
    assert "local-1 alone" in repr(account)
    assert "conv2d" in repr(account)
    assert "aten." not in repr(account)
    assert account.save(tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
    assert "<table" in account.save(tmp_path / "rows.html").read_text()


def test_an_onnx_file_is_shared_too(home, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, x = family("vgg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), tmp_path / "net.onnx", dynamo=False, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )  # fmt: skip
    with torch.no_grad():
        expected = net(x)
    made, batch, rebuild = accelerate_module._read(tmp_path / "net.onnx", x)
    assert batch == 2
    with fast_of(home, made, x) as fast:
        for entry in fast.table.entries:
            fast.bytes_per_s = entry.bytes_per_s
            assert torch.allclose(rebuild(list(fast(x))), expected, atol=1e-4)
        assert fast.stats.fallbacks == 0
        assert len(fast.stats.entries) > 1
