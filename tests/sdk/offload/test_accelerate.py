"""One request shared by real agents: the answer is the module's, at any bandwidth, of any model."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.sdk.graph.families import FAMILIES, as_onnx, family
from tests.sdk.offload.accelerating import case, check, check_every_entry, fast_of
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import ModelError, UserError
from potluck.handle import Task
from potluck.offload import accelerate as accelerate_module
from potluck.offload import accelerated as fast_module
from potluck.offload.accelerate import accelerate
from potluck.offload.accelerated import AcceleratedModel
from potluck.offload.plan.baselines import WAYS
from potluck.profile.measure import FLOOR_BYTES
from potluck.testing.internals import link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nobody_asks")


# all of them by interpreters, in test_lowering.py
IN_SHORT = ("vgg", "unet", "detector", "vit")


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n not in IN_SHORT)) for n in FAMILIES]
)
def test_the_answer_is_the_modules_at_every_bandwidth_and_within_the_memory_of_the_plan(
    process_home, name, monkeypatch
):
    # a busy machine is no reason to answer alone
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family(name)
    with torch.no_grad():
        expected = net(x)
    with fast_of(process_home, net, x) as fast:
        assert any(entry.program for entry in fast.table.entries)
        for entry in fast.table.entries:
            fast.bytes_per_s = entry.bytes_per_s
            check(fast(x), expected)
            execution, compiled = fast.kept[-1]
            assert compiled is (entry.program.compiled if entry.program else fast.alone)
            for device, timeline in execution.timelines.items():
                assert timeline.peak_bytes <= fast.memory_bytes[device]
        assert fast.failure is None


@pytest.mark.long
@pytest.mark.parametrize("name", ["mobilenet", "detector"])
def test_an_onnx_file_is_shared_inside_its_operators(home, name, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family(name)
    with torch.no_grad():
        expected = net(x)
    made = as_onnx(net, x)
    with fast_of(home, made, x) as fast:
        check_every_entry(fast, x, expected)


@pytest.mark.long
def test_baselines_answer_alike_on_the_same_devices_each_in_its_own_way(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
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
                assert computing == {"device": {fast.device}, "helper": {fast.helpers[0]}}.get(
                    way, computing
                )
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
        assert all(
            piece.weight_source == "0/layers-0-" + str(len(fast.model.layers())) for piece in pieces
        )
        assert n_bytes < fast.memory_bytes[fast.device] - FLOOR_BYTES < 2 * n_bytes + 2**20
    with pytest.raises(potluck.errors.HomeError, match="closed"):
        fast(x)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(2, 3, 27, 19), r"float32 \[2 rows, 3, 27, 18\] is expected"),
        (torch.zeros(3, 3, 27, 18), "2 rows"),
    ],
    ids=["another shape", "more rows"],
)
def test_another_shape_than_the_examples_is_answered_with_what_is_expected(home, x, says):
    net, example = family("vgg")
    with fast_of(home, net, example) as fast, pytest.raises((ModelError, UserError), match=says):
        fast(x)


@pytest.mark.long
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
        ({"bandwidths": (0.0, float("nan"))}, "bandwidths ascend from zero"),
        ({"bandwidths": 5}, "bandwidths ascend from zero"),
        ({"objective": "energy", "deadline_s": 0}, "deadline_s is in seconds, above zero"),
        ({"example": None}, "an example of the input is needed"),
        ({"example": torch.zeros(1, 3, 8, 8).numpy()}, "an example is a torch tensor.*as_tensor"),
        ({"example": (torch.zeros(1, 3), torch.zeros(1))}, "requests of one input; here are 2"),
        ({"helper": None}, "a device of a home is expected"),
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


@pytest.mark.long
def test_a_device_of_its_own_is_started_where_none_of_the_home_is_here_and_ends_with_it(
    process_home, monkeypatch
):
    monkeypatch.setattr(accelerate_module, "platform", SimpleNamespace(node=lambda: "elsewhere"))
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    made = [
        accelerate(net, x, helper=process_home["local-2"], bandwidths=(0.0, 1e8)) for _ in range(2)
    ]
    fasts = [handle.wait() for handle in made]
    assert {fast.device for fast in fasts} == {"this-machine", "this-machine-2"}
    for fast in fasts:
        with fast:
            assert torch.allclose(fast(x), expected, atol=1e-4)
        assert fast.device not in process_home.devices


def test_under_a_deadline_the_device_spends_fewer_joules(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    known = case(home, net, x, bandwidths=(0.0, 1e8))
    device, helper = known.problem.devices
    powered = replace(device, idle_w=1.0, busy_w=9.0, radio_w=0.5)
    soon = replace(known, problem=replace(known.problem, devices=(powered, helper)))
    fastest = soon.search()[-1][1]
    thrifty = replace(soon, deadline_s=2 * fastest.latency_s)
    with AcceleratedModel(link_of(home), home.devices, thrifty, tuple, None, Task()) as fast:
        fast.bytes_per_s = 1e8
        check(fast(x), expected)
        split = fast.table.at(1e8).split
        assert fast.stats.answers[-1].joules > 0
        assert split.energy_j < fastest.energy_j
        assert split.latency_s <= thrifty.deadline_s


def test_a_model_without_rows_is_cut_between_its_operators_and_says_so(home, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    x = torch.randn(2, 6)
    with torch.no_grad(), fast_of(home, net, x) as fast:
        fast.bytes_per_s = 1e8
        check(fast(x), net(x))
        assert fast.stats.answers[-1].way.startswith("share-")
        assert "no operator of this model can compute some rows" in repr(fast.explain(1e8))


@pytest.mark.long
def test_an_onnx_file_is_shared_too(home, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    net, x = family("vgg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (x,),
            tmp_path / "net.onnx",
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
    with torch.no_grad():
        expected = net(x)
    made, batch = accelerate_module.read_model(tmp_path / "net.onnx", x)
    assert batch == 2
    with fast_of(home, made, x) as fast:
        for entry in fast.table.entries:
            fast.bytes_per_s = entry.bytes_per_s
            assert torch.allclose(made.answer(list(fast(x))), expected, atol=1e-4)
        assert fast.stats.fallbacks == 0
        assert len(fast.stats.entries) > 1


class SequenceFirst(torch.nn.Module):
    """Turns the sequence to the front for a while, where rows of the batch are the second
    dimension.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)

    def forward(self, x):
        turned = self.first(x.transpose(0, 1)).unflatten(2, (2, 6)).cumsum(0).flatten(2)
        return self.second(torch.relu(turned)).transpose(0, 1).softmax(-1)


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [SequenceFirst, lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)],
    ids=["turned", "encoder"],
)
def test_rows_of_the_batch_are_not_what_is_divided(make, rows):
    torch.manual_seed(0)
    net, x = make().eval(), torch.randn(rows, 11, 8)
    paces = {"slow_s": 0.01, "fast_s": 0.004, "bandwidths": (0.0, 1e5, 3e6, 1e9)}
    with memory_home(3) as home, fast_of(home, net, x, **paces) as fast:
        check_every_entry(fast, x, net(x).detach())
