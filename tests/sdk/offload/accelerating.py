"""What the tests of shared requests have in common: cases with made-up times, and what an answer
has to be.
"""

import time

from tests.timeouts import TIMEOUT_S

import potluck
from potluck.handle import Task
from potluck.offload.accelerated import AcceleratedModel
from potluck.offload.plan.lowering import Shareable
from potluck.offload.rows.operator_times import OperatorTimes
from potluck.offload.split_table import SplitCase
from potluck.profile.measure import device_of
from potluck.profile.network import network_of
from potluck.records import Inference, LayerCost, Problem
from potluck.testing.internals import link_of

TOLERANCE = 1e-5  # relative to the largest; kernels for other sizes may sum in another order
BANDWIDTHS = (0.0, 3e5, 3e6, 1e8)


def case(home, net, x, slow_s=1e-3, fast_s=2e-4, **more):
    """As if every operator had been measured to take so long, so that sharing pays at some
    bandwidth.
    """
    model = net if isinstance(net, potluck.Model) else potluck.Model.from_torch(net, x)
    names = tuple(home.devices)
    capabilities = {name: home.devices[name].capability for name in names}
    cost = LayerCost(rows=(1,), forward_s=(slow_s,))
    problem = Problem(
        model="m",
        devices=tuple(device_of(name, capability) for name, capability in capabilities.items()),
        network=network_of(capabilities, {}),
        layers=model.layers(),
        workload=Inference(batch=len(x)),
        costs=dict.fromkeys(names, (cost,) * len(model.layers())),
    )
    shareable = Shareable(model.traced_line())
    side_times = tuple(
        OperatorTimes(
            seconds=dict.fromkeys(shareable.values, s),
            fixed_s=dict.fromkeys(shareable.values, min(1e-5, s)),
        )
        for s in (slow_s, *[fast_s] * (len(names) - 1))
    )
    return SplitCase(
        model=model,
        shareable=shareable,
        problem=problem,
        names=tuple(names),
        side_times=side_times,
        batch=len(x),
        weight_source=f"0/layers-0-{len(model.layers())}",
        **{"bandwidths": BANDWIDTHS, **more},
    )


def fast_of(home, net, x, **more):
    return AcceleratedModel(
        link_of(home), home.devices, case(home, net, x, **more), tuple, None, Task()
    )


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


def wait_until(holds):
    limit_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < limit_s, "it did not happen"
        time.sleep(0.02)
