"""Layer times from a data sheet: worked by hand, against what a paper measured, and what must hold
for any device.
"""

from itertools import pairwise

import pytest

from potluck.errors import FileError, UserError
from potluck.graph.modelgraph import KINDS, ModelGraph, ModelInput, OperatorNode
from potluck.profile import library, roofline
from potluck.profile.library import DeviceSpec, Number


def device(**values):
    numbers = {
        field: Number(value=value, basis="estimate", source="a test")
        for field, value in values.items()
    }
    return DeviceSpec(
        name="d", title="d", kind="gpu", backends=("torch",), numbers=numbers, file="d.toml"
    )


GPU = device(peak_fp32_flop_per_s=1e12, memory_bytes_per_s=1e10, launch_s=1e-5)


def test_arithmetic_decides_by_hand():
    node = OperatorNode(
        name="n",
        kind="matmul",
        forward_flop=7 * 10**8,
        backward_flop=14 * 10**8,
        parameter_bytes=75,
    )
    # 0.7e9 flop a row at 0.7e12 flop/s is 1 ms a row; a launch is 10 us, two of them backward.
    assert roofline.node_s(GPU, node, 1) == pytest.approx((1.01e-3, 2.02e-3))
    assert roofline.node_s(GPU, node, 10) == pytest.approx((10.01e-3, 20.02e-3))


def test_memory_decides_by_hand_and_weights_do_not_grow_with_the_batch():
    node = OperatorNode(
        name="n", kind="matmul", forward_flop=1, parameter_bytes=15_000_000, traffic_bytes=750_000
    )
    # 7.5e9 bytes/s: weights 2 ms, 0.1 ms a row.
    assert roofline.node_s(GPU, node, 1) == pytest.approx((2.11e-3, 4.22e-3))
    assert roofline.node_s(GPU, node, 10) == pytest.approx((3.01e-3, 6.02e-3))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_efficiency_and_a_row_gets_cheaper_in_a_batch(kind):
    node = OperatorNode(
        name="n",
        kind=kind,
        forward_flop=10**6,
        backward_flop=10**6,
        parameter_bytes=10**5,
        traffic_bytes=10**4,
    )
    for name in ("gpu", *roofline.EFFICIENCY):
        efficiency = roofline.EFFICIENCY[name][kind]
        assert 0 < efficiency.compute_frac <= 1
        assert 0 < efficiency.memory_frac <= 1
    per_row = [roofline.node_s(GPU, node, rows)[0] / rows for rows in (1, 2, 4, 8, 64)]
    assert all(more > less for more, less in pairwise(per_row))


def test_every_kind_of_device_has_efficiencies_and_a_launch():
    assert set(roofline.EFFICIENCY) == set(roofline.LAUNCH_S) == set(library.DEVICE_KINDS)


def test_tables_follow_the_layers_and_say_that_they_are_estimates():
    nodes = (
        OperatorNode(name="a", kind="conv", inputs=("x",), forward_flop=10),
        OperatorNode(name="b", kind="norm", inputs=("a",)),
    )
    graph = ModelGraph(
        name="g", inputs=(ModelInput(name="x", row_bytes=4),), nodes=nodes, outputs=("b",)
    )
    tables = roofline.estimate(GPU, graph, rows=(1, 8))
    assert [table.rows for table in tables] == [(1, 8), (1, 8)]
    assert {table.source for table in tables} == {"estimated"}
    assert len(tables) == len(graph.layers())
    assert tables[0].forward_s == tuple(roofline.node_s(GPU, nodes[0], rows)[0] for rows in (1, 8))
    for rows in ((), (0,), (2, 1), (1, 1)):
        with pytest.raises(UserError, match="ascending"):
            roofline.estimate(GPU, graph, rows=rows)


@pytest.mark.parametrize("field", ["peak_fp32_flop_per_s", "memory_bytes_per_s"])
def test_an_unknown_rate_is_an_error_that_names_field_and_file(field):
    values = {"peak_fp32_flop_per_s": 1.0, "memory_bytes_per_s": 1.0}
    del values[field]
    with pytest.raises(FileError, match=rf"d\.toml: {field} of d is not known"):
        roofline.node_s(device(**values), OperatorNode(name="n", kind="conv"), 1)


def step_s(name, model, rows=32):
    """Seconds per row of a training step."""
    tables = roofline.estimate(library.load_device(name), library.load_model(model), rows=(rows,))
    return sum(table.forward_s[0] + table.backward_s[0] for table in tables) / rows


def test_resnet50_on_jetsons_takes_about_what_asteroid_measured():
    # Asteroid, Table 1: an epoch of ResNet-50 on Mini-ImageNet takes 3.48 h on a Nano, 1.14 h on a
    # TX2. The paper does not print the number of images; common splits train on 38,400 to 60,000.
    nano, tx2 = step_s("jetson-nano", "resnet50"), step_s("jetson-tx2", "resnet50")
    assert 3.48 * 3600 / 60_000 <= nano <= 3.48 * 3600 / 38_400
    assert 1.14 * 3600 / 60_000 <= tx2 <= 1.14 * 3600 / 38_400
    assert nano / tx2 == pytest.approx(3.48 / 1.14, rel=0.15)


@pytest.mark.parametrize("model", ["resnet50", "bert-base", "vgg19"])
def test_faster_devices_are_estimated_faster(model):
    order = [
        "raspberry-pi-4",
        "raspberry-pi-5",
        "jetson-nano",
        "jetson-tx2",
        "jetson-xavier-nx",
        "jetson-orin-nano",
    ]
    order += ["rtx-4050-laptop", "rtx-4060-laptop", "rtx-3080", "rtx-4090"]
    times = [step_s(name, model) for name in order]
    assert times == sorted(times, reverse=True)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", library.names("homes"))
def test_every_device_of_every_home_can_be_estimated(name):
    graph = library.load_model("mobilenet-v2-cifar")
    for spec in library.load_home(name).specs.values():
        assert all(
            min(table.forward_s) > 0 for table in roofline.estimate(spec, graph, rows=(1, 8))
        )
