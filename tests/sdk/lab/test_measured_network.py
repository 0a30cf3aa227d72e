"""A network that nobody told: measured between agents in namespaces, where the truth is known, and
plans by it.
"""

from dataclasses import replace

import pytest
from tests.sdk.lab.homes import write_home

import potluck
from potluck.lab.namespaces import missing
from potluck.planning.evaluate import judge
from potluck.profile.home_network import AIR, SWITCH, UPLINK
from potluck.records import HOME
from potluck.testing.internals import lab_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "namespaces")

SCALE = 100.0
RATE = 6e6  # bytes per second of a medium in the lab
BATCH = 16


def slow_link(part, of):
    """A link between two sites, at such a part of the rate there, and such a part of it back."""
    up, down = (
        f'{{ value = {RATE * SCALE * each}, basis = "estimate", source = "a test" }}'
        for each in (part, of)
    )
    return f'{{ sites = ["here", "far"], there_bytes_per_s = {up}, back_bytes_per_s = {down} }}'


THREE, FOUR = ("one", "two", "three"), ("one", "two", "three", "four")
# what is in the file of the home, and the rows of several devices that are the truth. The notebook
# runs on "one", and is the name of that machine.
WIRINGS = {
    "wifi": ({"devices": THREE}, {(AIR, ("home", "three", "two"))}),
    "switch": ({"devices": THREE, "topology": "switch"}, set()),
    "channels": (
        {"devices": FOUR, "sites": ("g", "g", "h", "h")},
        {(AIR, ("home", "two")), (AIR, ("four", "three"))},
    ),
    "uplink": (
        {
            "devices": FOUR,
            "topology": "sites",
            "sites": ("here", "here", "far", "far"),
            "links": slow_link(0.1, 0.2),
        },
        {(UPLINK, ("four", "three"))},
    ),
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(4)]
    net = torch.nn.Sequential(*blocks, torch.nn.Flatten(), torch.nn.Linear(64 * 128, 4))
    x, y = torch.randn(BATCH, 64, 128), torch.randint(0, 4, (BATCH,))
    loss = torch.nn.functional.cross_entropy
    return potluck.Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4])


@pytest.mark.long
@pytest.mark.parametrize("wiring", WIRINGS)
def test_what_is_measured_is_the_truth_and_plans_by_it_hold(wiring, model, tmp_path):
    options, shared = WIRINGS[wiring]
    path = write_home(tmp_path, name=wiring, rate=RATE * SCALE, **options)
    with potluck.Home.lab(path, time_scale=SCALE, links="namespaces") as home:
        document = home.measure_network().wait()
        rows = {(row.kind, row.devices) for row in document.media if row.kind != SWITCH}
        assert rows == shared
        truth = lab_of(home).emulation.network
        for pair in truth.paths:
            if truth.path(*pair).media:
                assert document.bandwidth(*pair) == pytest.approx(truth.bandwidth(*pair), rel=0.25)
        profile = home.profile(model, rows=(2, 4, BATCH), repeats=5, network=document).wait()
        assert home.network.media == document.media
        workload = potluck.Training(batch=BATCH)
        plan = potluck.plan(profile, workload).best
        problem = profile.problem(workload)
        late = {
            pair: replace(path, latency_s=profile.network.path(*pair).latency_s)
            for pair, path in truth.paths.items()
        }
        on_truth = judge(replace(problem, network=replace(truth, paths=late)), plan)
        assert on_truth.latency_s == pytest.approx(plan.latency_s, rel=0.1)


@pytest.mark.long
def test_the_notebook_speaks_for_the_machine_that_it_runs_on(tmp_path):
    path = write_home(tmp_path, devices=("one", "two"), rate=RATE * SCALE)
    with potluck.Home.lab(path, time_scale=SCALE, links="namespaces") as home:
        assert not home.network.media  # as it is played
        assert home.network.bandwidth("one", "two") == pytest.approx(RATE / 2)
        document = home.measure_network().wait()
        assert set(document.devices) == {HOME, "two"}
        assert document.path("one", "two") == document.path(HOME, "two")
