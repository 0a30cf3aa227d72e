"""Optimizer steps and copies of estimated devices: as many bytes as they pass, at the rate of the
memory.
"""

from dataclasses import replace

import pytest

import potluck
from potluck.profile import library
from potluck.profile.roofline import adamw_s
from potluck.records import Training
from potluck.simulate import cost, equations

torch = pytest.importorskip("torch")
OPTIMIZERS = {
    0: lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    1: lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    2: lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}


class Passes(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the tensors of more than one number that operators read and write, each once per
    operator.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        read = {arg.data_ptr() for arg in args if isinstance(arg, torch.Tensor) and arg.numel() > 1}
        self.count += len(read) + (isinstance(result, torch.Tensor) and result.numel() > 1)
        return result


@pytest.mark.parametrize("copies", OPTIMIZERS)
def test_the_passes_of_an_optimizer_are_those_that_torch_makes(copies):
    parameter = torch.ones(8)
    parameter.grad = torch.ones(8)
    optimizer = OPTIMIZERS[copies]([parameter])
    optimizer.step()  # the first one makes the state
    with Passes() as passes:
        optimizer.step()
    assert passes.count == cost.UPDATE_PASSES[copies]


def estimated(home, copies):
    profile = potluck.estimate(home, "mobilenet-v2-cifar", max_layers=4, rows=(8,))
    return profile.problem(Training(batch=8, optimizer_copies=copies))


@pytest.mark.few(5)
@pytest.mark.parametrize("home", library.names("homes"))
def test_no_estimated_device_passes_more_bytes_than_its_memory_nor_less_than_half(home):
    specs = library.load_home(home).specs
    for copies, passes in enumerate(cost.UPDATE_PASSES):
        problem = estimated(home, copies)
        table = cost.CostTable(problem)
        for device in problem.devices:
            bus = specs[device.name].need("memory_bytes_per_s")
            updating_s = (
                equations.update_s(table, device, 0, len(problem.layers)) - device.overhead_s
            )
            assert (
                0.5 <= passes * table.parameter_bytes(0, len(problem.layers)) / updating_s / bus < 1
            )
            assert (
                0.5
                <= equations.ADD_PASSES
                * 1e6
                / (equations.copy_s(device, 10**6) - device.overhead_s)
                / bus
                < 1
            )


def test_a_step_of_adamw_on_a_graphics_card_by_hand():
    # 110 million parameters of 4 bytes, 20 passes at three quarters of 1.01e12 bytes/s: 11.6 ms.
    assert adamw_s(library.load_device("rtx-4090"), 440_000_000) == pytest.approx(11.6e-3, rel=0.01)


def test_what_a_device_file_states_of_copies_comes_first(tmp_path):
    text = (library.file_of("devices", "rtx-4090")).read_text()
    path = tmp_path / "rtx-4090.toml"
    path.write_text(
        text + 'copy_bytes_per_s = { value = 3e9, basis = "measured", source = "a test" }\n'
    )
    assert library.load_device(path).device().copy_bytes_per_s == 3e9


def test_a_step_takes_what_was_measured_of_its_own_optimizer():
    seconds = 0.25, 0.5, 2.0
    for copies, expected_s in enumerate(seconds):
        problem = estimated("smart-home-2", copies)
        measured = {
            name: tuple(replace(item, sgd_s=seconds[:2], update_s=seconds[2]) for item in costs)
            for name, costs in problem.costs.items()
        }
        table, device = cost.CostTable(replace(problem, costs=measured)), problem.devices[0]
        taken_s = equations.update_s(table, device, 1, 3) - device.overhead_s
        assert taken_s == pytest.approx(2 * expected_s)


@pytest.mark.long
def test_a_device_times_a_step_of_every_optimizer(home):
    x, y = torch.randn(4, 64), torch.randint(0, 4, (4,))
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 4))
    net[0].requires_grad_(False)
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    profile = home.profile(model, rows=(4,), repeats=1).wait()
    for costs in profile.training.costs.values():
        for layer, item in zip(profile.training.layers, costs, strict=True):
            assert len(item.sgd_s) == 2
            assert layer.trained_bytes == 0 or min(*item.sgd_s, item.update_s) > 0
    assert all(item.sgd_s == () for costs in profile.inference.costs.values() for item in costs)
