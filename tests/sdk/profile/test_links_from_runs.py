"""What links learn from a run: on simulated runs over a network whose truth is known, by hand, and
in the document.
"""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.planning.evaluate import compile_plan
from potluck.profile.from_runs import learned
from potluck.profile.home_network import (
    AIR,
    LEARNED,
    SWITCH,
    UPLINK,
    Figure,
    HomeNetwork,
    SharedMedium,
)
from potluck.profile.links_from_runs import factors_of, learned_rows, slowed
from potluck.profile.profiles import Measurements, Profile
from potluck.records import HOME, Medium, Network, Path, Plan, Stage
from potluck.run.comparison import compare
from potluck.simulate.predict import predict_steps


def figure(value):
    return Figure(value=value, error_frac=0.1, source="measured")


DOCUMENT = HomeNetwork(
    media=(
        SharedMedium(
            name="living room",
            kind=AIR,
            devices=("a", "b", "c"),
            up_bytes_per_s=figure(8e6),
            stations={"c": figure(2e6)},
        ),
        SharedMedium(
            name="line",
            kind=UPLINK,
            devices=("x", "y"),
            up_bytes_per_s=figure(1e6),
            down_bytes_per_s=figure(4e6),
        ),
        SharedMedium(
            name="cable",
            kind=SWITCH,
            devices=(HOME,),
            up_bytes_per_s=figure(1e8),
            down_bytes_per_s=figure(1e8),
        ),
    )
)


def test_a_ratio_counts_for_the_medium_that_limits():
    network = DOCUMENT.records
    # 1.44 times longer: 1.2 of it is learned
    found = factors_of(network, {("x", "a"): (1.0, 1.44), ("a", "b"): (1.0, 1.0)})
    assert found == {"x and y up": pytest.approx(1.2), "living room": pytest.approx(1.0)}
    assert factors_of(network, {("a", "b"): (1.0, 1.0), ("a", "c"): (1.0, 9.0)}) == {
        "living room": pytest.approx(2.0)  # the median of 1 and 9, and at most 4
    }


def test_latency_is_no_rate():
    waiting = Path(media=(("air", 2),), latency_s=0.9)
    network = Network(
        media=(Medium(name="air", capacity_bytes_per_s=1e6),), paths={("a", "b"): waiting}
    )
    assert factors_of(network, {("a", "b"): (1.0, 5.0)}) == {}
    assert factors_of(network, {("a", "z"): (1.0, 5.0)}) == {}
    inside = replace(network, paths={("a", "b"): replace(waiting, latency_s=0.0, host="box")})
    assert factors_of(inside, {("a", "b"): (1.0, 5.0)}) == {}


def test_a_document_says_what_it_has_learned():
    factors = {"living room": 2.0, "x and y down": 0.5}
    found = learned_rows(replace(DOCUMENT, beside=DOCUMENT.records), factors)
    air, line, cable = found.media
    assert air.up_bytes_per_s == Figure(value=4e6, error_frac=0.1, source=LEARNED)
    assert air.stations == {"c": Figure(value=1e6, error_frac=0.1, source=LEARNED)}
    assert line.up_bytes_per_s == figure(1e6)
    assert line.down_bytes_per_s == Figure(value=8e6, error_frac=0.1, source=LEARNED)
    assert cable == DOCUMENT.media[2]
    # as the network of planners does
    assert found.beside == slowed(DOCUMENT.records, factors)
    for pair in found.records.paths:
        assert found.records.bandwidth(*pair) == pytest.approx(
            slowed(DOCUMENT.records, factors).bandwidth(*pair), rel=0.05
        )


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("off", [0.4, 1.0, 2.5])
def test_what_runs_show_leads_to_the_truth(seed, off):
    """The truth is a simulated run; the profile begins with another rate, and learns."""
    truth = random_home(seed, devices=3, capacity=3e3)
    names = [device.name for device in truth.devices]
    n = len(truth.layers)
    cuts = [round(i * n / len(names)) for i in range(len(names) + 1)]
    stages = tuple(
        Stage(start=a, stop=b, devices=(name,), shares=(2,), warm_up=len(names) - i)
        for i, (name, a, b) in enumerate(zip(names, cuts[:-1], cuts[1:], strict=True))
    )
    plan = Plan(planner="by hand", model="chain", micro_batch=2, n_micro_batches=4, stages=stages)
    compiled = compile_plan(truth, plan)
    measured = predict_steps(compiled, truth)
    costs = Measurements(layers=truth.layers, costs=truth.costs)
    (medium,) = truth.network.media
    profile = Profile(
        model="chain",
        signature="s",
        devices=truth.devices,
        network=slowed(truth.network, {medium.name: 1 / off}),
        training=costs,
    )

    def apart():
        (found,) = profile.network.media
        ratio = found.capacity_bytes_per_s / medium.capacity_bytes_per_s
        return max(ratio, 1 / ratio)

    begin = apart()
    for _ in range(6):
        problem = replace(truth, network=profile.network)
        predicted = predict_steps(compiled, problem)
        compared = compare(predicted, measured, compiled.programs, problem.network)
        transfers = {(each.source, each.target): each.median_s for each in compared.transfers}
        profile = learned(
            profile, predicted, measured, compiled, training=True, steady=names, transfers=transfers
        )
    assert apart() == pytest.approx(1.0, abs=0.1 + 0.05 * (begin - 1))
