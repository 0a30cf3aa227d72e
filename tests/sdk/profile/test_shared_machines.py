"""Devices of one machine: the cores that they share, and what handing out their work takes."""

from dataclasses import dataclass, field

import pytest

from potluck.errors import OutOfMemory
from potluck.profile.shared_machines import (
    MeasuredHop,
    at_work,
    effective_cores,
    shared_machines,
    sharing_hosts,
)
from potluck.records import HOME, Device, LayerCost, Medium, Network, Path

LAYERS = (
    LayerCost(rows=(1, 8), forward_s=(0.01, 0.02)),
    LayerCost(rows=(1, 8), forward_s=(0.02, 0.08)),
)


@dataclass
class Bench:
    """Two cores; small values take 1 ms, and 3 ms when both ends have computed."""

    layers: list[int] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def call_s(self, device, train):
        return 0.02

    def together_s(self, devices, model, index, train, rows, n):
        self.layers.append(index)
        return 0.1 * len(devices) / 2

    def waits_at_work_s(self, source, target, devices, model, index, train, rows):
        self.pairs.append((source, target))
        return [0.003, 0.002, 0.004]

    def waits_s(self, source, target):
        return 0.001, 0.001, 0.009


def test_devices_that_compute_as_fast_as_they_can_share_their_machine():
    a = {"host": "box"}
    b = {"host": "box", "emulated": {"slowdown": 1.0}}
    c = {"host": "box"}
    other, slow = {"host": "alone"}, {"host": "box", "emulated": {"slowdown": 3.0}}
    assert sharing_hosts({"a": a, "other": other, "b": b, "slow": slow, "c": c}) == [
        ("a", "b", "c")
    ]


@pytest.mark.parametrize(
    ("n_devices", "room", "speed_frac", "expected"),
    [
        (2, 2.0, 1.0, 2.0),
        (2, 2.0, 0.8, 1.6),
        (4, 2.0, 0.5, 2.0),
        (4, 2.0, 0.4, 1.6),
        (2, 8.0, 1.1, 8.0),
    ],
)
def test_cores_by_how_much_devices_slow_each_other(n_devices, room, speed_frac, expected):
    assert effective_cores(n_devices, room, speed_frac) == pytest.approx(expected)


def test_the_machine_of_several_devices_is_measured_by_their_heaviest_layer():
    alike = {"host": "box", "cores": 2, "threads": 1}
    capabilities = dict.fromkeys("abcd", alike) | {"alone": {"host": "elsewhere"}}
    bench = Bench()
    machines = shared_machines(
        bench, None, {name: {False: LAYERS} for name in capabilities}, capabilities
    )
    assert set(machines) == set("abcd")
    assert bench.layers == [1]
    assert len(bench.pairs) < len("abcd")
    device = machines["a"].device(Device(name="a", memory_bytes=1))
    assert (device.host_cores, device.handling_s) == pytest.approx((2.0, 0.0015))
    inside, outside = Path(media=(("m", 1),), latency_s=0.001, host="box"), Path(media=(("m", 1),))
    network = Network(
        media=(Medium(name="m", capacity_bytes_per_s=1.0),),
        paths={("a", "b"): inside, ("a", "alone"): outside},
    )
    slower = at_work(network, machines.values()).paths
    assert slower["a", "b"].latency_s == pytest.approx(0.003)
    assert slower["a", "alone"] == outside


def test_a_paced_uplink_says_nothing_of_the_processor():
    paced = {"host": "box", "emulated": {"slowdown": 1.0, "link_bytes_per_s": 1e5}}
    bench = Bench()
    machines = shared_machines(
        bench, None, {name: {False: LAYERS} for name in "ab"}, {"a": paced, "b": paced}
    )
    assert bench.pairs == []
    assert machines["a"].device(Device(name="a", memory_bytes=1)).handling_s == 0.0


def machine_with(hop_between):
    alike = {"host": "box", "cores": 2, "threads": 1}
    times = {name: {False: LAYERS} for name in "abc"}
    return shared_machines(Bench(), None, times, dict.fromkeys("abc", alike), hop_between)["a"]


def test_a_value_takes_as_long_as_it_did_from_task_to_task_beside_its_bytes():
    machine = machine_with(lambda source, target: MeasuredHop(seconds=0.015, nbytes=500))
    inside = Path(media=(("m", 1),), latency_s=0.001, host="box")
    network = Network(
        media=(Medium(name="m", capacity_bytes_per_s=1e5),),
        paths={("b", "c"): inside, (HOME, "a"): inside},
    )
    paths = at_work(network, [machine]).paths
    assert paths["b", "c"].latency_s == pytest.approx(0.010)
    assert paths[HOME, "a"].latency_s == pytest.approx(0.003)  # no task sends it


def test_where_nothing_can_be_run_small_values_say_what_there_is_to_say():
    def refused(source, target):
        raise OutOfMemory("no room.", device=target)

    assert machine_with(refused) == machine_with(None)
