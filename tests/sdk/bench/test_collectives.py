"""DDP and FSDP as tasks: by hand on two devices and one link, and beside the computing."""

from dataclasses import replace

import pytest

from potluck.bench.collectives import BUCKET_BYTES, ddp_s, fsdp_s, units
from potluck.records import Device, Layer, LayerCost, Medium, Network, Path, Problem, Training
from potluck.simulate import equations
from potluck.simulate.cost import CostTable

MIB, RATE = 2**20, 10 * 2**20  # bytes per second on each link


def pair(n_devices=2, sizes=(20, 20), memory=1 << 34):
    """Two layers of 1 s forward and 2 s backward, whatever the rows; links of 10 MiB/s each way."""
    names = [f"d{i}" for i in range(n_devices)]
    pairs = [(a, b) for a in names for b in names if a != b]
    costs = LayerCost(rows=(1, 8), forward_s=(1.0, 1.0), backward_s=(2.0, 2.0), sgd_s=(0.0, 0.0))
    return Problem(
        model="two",
        workload=Training(batch=4, optimizer_copies=0),
        devices=tuple(Device(name=name, memory_bytes=memory) for name in names),
        network=Network(
            media=tuple(Medium(name=f"{a}>{b}", capacity_bytes_per_s=RATE) for a, b in pairs),
            paths={(a, b): Path(media=((f"{a}>{b}", 1),)) for a, b in pairs},
        ),
        layers=tuple(
            Layer(name=f"l{i}", parameter_bytes=size * MIB, output_bytes=4, gradient_bytes=4)
            for i, size in enumerate(sizes)
        ),
        costs=dict.fromkeys(names, (costs,) * len(sizes)),
    )


def both(problem):
    table = CostTable(problem)
    update_s = equations.update_s(table, problem.devices[0], 0, len(problem.layers))
    return ddp_s(problem, table) - update_s, fsdp_s(problem, table) - update_s / len(
        problem.devices
    )


def test_one_device_alone_only_computes():
    assert both(pair(1)) == (pytest.approx(6.0), pytest.approx(6.0))


def test_a_bucket_is_summed_while_the_layers_before_it_go_back():
    """Two buckets of 20 MiB: 2 rounds of 10 MiB each, 1 s a round. The last layer's come at 4 s and
    are summed by 6 s, when those of the first come: 8 s.
    """
    assert both(pair())[0] == pytest.approx(8.0)


def test_shards_are_gathered_ahead_and_scattered_behind():
    """Each gather or scatter takes 1 s. Forwards are over at 3 s, the last unit's backward at 5 s,
    the first one's at 7 s, and its gradients are scattered at 8 s.
    """
    assert both(pair())[1] == pytest.approx(8.0)


def test_neighbouring_layers_share_a_bucket():
    table = CostTable(pair(sizes=(10, 10, 10, 40, 1)))
    assert units(table, BUCKET_BYTES) == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_what_a_device_cannot_hold_is_no_ddp():
    problem = pair(memory=50 * MIB)
    assert ddp_s(problem, CostTable(problem)) == float("inf")


def test_more_devices_in_the_ring_wait_for_its_slowest_link():
    problem, slow = pair(3), "d1>d2"
    media = tuple(
        replace(m, capacity_bytes_per_s=RATE / 10) if m.name == slow else m
        for m in problem.network.media
    )
    slower = replace(problem, network=replace(problem.network, media=media))
    # a third of both buckets in each of four rounds over the slow link, and less than a bucket more
    least_s = 4 * 40 / 3
    assert least_s < both(slower)[0] < least_s + 30
