"""An accelerated model in careless hands: each use of it works, or is answered with what would."""

import threading

import pytest
from tests.sdk.graph.families import family
from tests.sdk.offload.accelerating import case, check, fast_of
from tests.timeouts import TIMEOUT_S

import potluck
from potluck import units
from potluck.errors import HomeError, ModelError, UserError
from potluck.handle import Task
from potluck.offload import accelerated as fast_module
from potluck.offload.accelerate import accelerate
from potluck.offload.accelerated import AcceleratedModel
from potluck.sessions.agent_specs import Spec
from potluck.testing.internals import link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nobody_asks")


def test_a_file_that_is_not_there_and_an_example_of_another_shape_are_named(home, tmp_path):
    with pytest.raises(potluck.errors.FileError, match=r"nothing\.onnx cannot be read"):
        accelerate(tmp_path / "nothing.onnx", torch.zeros(1, 3), helper=home["local-2"])
    with pytest.raises(ModelError, match=r"to have 3 channels, but got 4.*Does net\(example\) run"):
        accelerate(torch.nn.Conv2d(3, 2, 1), torch.zeros(1, 4, 8, 8), helper=home["local-2"])


@pytest.mark.long
def test_wrong_requests_and_bandwidths_are_answered_and_the_next_request_is_too(home):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    with fast_of(home, net, x) as fast:
        for inputs, says in (
            ((x.numpy(),), "input is an array; a tensor is expected.*as_tensor"),
            (([x],), "input is a list"),
            ((None,), "input is a NoneType"),
            ((), "1 tensor is expected"),
            ((x, x), "1 tensor is expected"),
            ((x.half(),), r"Convert it: \.to\(torch\.float32\)"),
        ):
            with pytest.raises(ModelError, match=says):
                fast(*inputs)
        with (
            torch.autocast("cpu"),
            pytest.raises(ModelError, match=r"called under torch\.autocast"),
        ):
            fast(x)
        for rate in (-1.0, float("nan"), float("inf"), "5 MB/s"):
            with pytest.raises(UserError, match="a bandwidth is in bytes per second"):
                fast.explain(rate)
        turned = x.transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
        check(fast(turned), expected)


def test_a_model_in_training_mode_with_dropout_in_half_precision_answers_as_it_does_in_evaluation(
    home, monkeypatch
):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.Dropout(),
        torch.nn.Conv2d(4, 2, 3),
    ]
    net, x = torch.nn.Sequential(*layers).half().train(), torch.randn(2, 3, 9, 7).half()
    with fast_of(home, net, x) as fast, torch.no_grad():
        fast.bytes_per_s = 1e8
        (got,) = fast(x)
        assert "local-2" in fast.stats.answers[-1].by
        assert net.training
        assert torch.allclose(got, net.eval()(x), atol=1e-2)


def test_requests_of_several_threads_are_answered_one_after_the_other(home):
    net, x = family("vgg")
    with torch.no_grad():
        expected = net(x)
    answers = []
    with fast_of(home, net, x) as fast:
        threads = [threading.Thread(target=lambda: answers.append(fast(x))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert len(answers) == 3
    for answer in answers:
        check(answer, expected)


def test_it_shows_what_it_does_now_and_tells_that_it_is_closed_and_is_closed_twice(home):
    net, x = family("vgg")
    fast = fast_of(home, net, x)
    fast.bytes_per_s = 1e8
    fast(x)
    fast.bytes_per_s = 1e8
    shown = repr(fast)
    assert "Accelerated: local-1 with local-2" in shown
    assert f"{units.rate(1e8)}, as transfers have shown" in shown
    assert "local-2 computes" in shown
    assert "1 request, typically" in shown
    fast.bytes_per_s = 0.0
    assert "local-1 answers alone" in repr(fast)
    assert fast._repr_html_().count("<svg") == 1
    fast.close()
    fast.close()
    assert "closed" in repr(fast)
    for use in (lambda: fast(x), fast.__enter__, lambda: fast.like("device")):
        with pytest.raises(HomeError, match="closed"):
            use()
    assert fast.stats.requests == 1


@pytest.mark.long
def test_it_can_be_closed_after_its_home(own_home):
    net, x = family("vgg")
    before = set(threading.enumerate())
    fast = AcceleratedModel(
        link_of(own_home), own_home.devices, case(own_home, net, x), tuple, None, Task()
    )
    own_home.close()
    fast.close()
    assert set(threading.enumerate()) <= before


def test_the_fewest_joules_of_a_device_whose_power_nobody_knows_are_refused():
    """They would all be zero."""
    net, x = family("vgg")
    played = [Spec(name=name, emulated=True) for name in ("weak", "strong")]
    with memory_home(played) as home, pytest.raises(UserError, match="nobody knows its power") as e:
        accelerate(
            net, x, device=home["weak"], helper=home["strong"], objective="energy", deadline_s=9.0
        ).wait()
    assert e.value.device == "weak"
    assert "--power" in e.value.next_step


def _in_place(net):
    with torch.no_grad():
        net[0].weight.mul_(2.0)


def _loaded(net):
    net.load_state_dict({name: tensor + 1 for name, tensor in net.state_dict().items()})


CHANGES = {
    "a weight in place": _in_place,
    "a weight through data": lambda net: net[0].bias.data.add_(1.0),
    "a state dict": _loaded,
    "a statistic": lambda net: net[1].running_mean.add_(1.0),
    "another weight": lambda net: setattr(net[0], "bias", torch.nn.Parameter(torch.ones(4))),
    "a hook": lambda net: net[2].register_forward_hook(lambda module, args, output: output * 2),
    "an attribute": lambda net: setattr(net[0], "padding", (0, 0)),
    "training of a part": lambda net: net[1].train(),
}


@pytest.mark.long
@pytest.mark.parametrize("bandwidth", [0.0, 1e8], ids=["alone", "shared"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_after_it_was_accelerated_is_never_answered_by_what_was(change, bandwidth):
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    net, x = torch.nn.Sequential(*layers).eval(), torch.randn(1, 3, 12, 12)
    with memory_home(2) as home, fast_of(home, net, x) as fast:
        fast.bytes_per_s = bandwidth
        check(fast(x), net(x).detach())
        CHANGES[change](net)
        for _ in range(2):
            with pytest.raises(ModelError, match="changed"):
                fast(x)
        assert fast.failure is None


SAME_FOR_ALL = {
    "of weights": lambda net, x: (net.weight * 2).sum().expand(len(x), 3),
    "a weight": lambda net, x: net.bias.expand(len(x), 2),
    "of nothing": lambda net, x: torch.ones(len(x), 3),
}


@pytest.mark.parametrize("case", SAME_FOR_ALL)
def test_an_output_that_is_the_same_for_every_request_is_refused_by_name(home, case):
    class Two(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), SAME_FOR_ALL[case](self, x)

    with pytest.raises(ModelError, match="is the same for every request"):
        accelerate(Two(6, 2), torch.randn(1, 6), helper=home["local-2"]).wait()
