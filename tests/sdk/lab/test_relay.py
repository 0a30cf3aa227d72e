"""Links in user space: media are shared there too, and a run over them equals one machine."""

import pytest
from tests.sdk.lab.homes import write_home

import potluck
from potluck.errors import UserError
from potluck.lab.airtime import Airtime, Slot
from potluck.lab.script import Bandwidth
from potluck.profile.topology import Attachment, Wiring, build
from potluck.records import Stage

torch = pytest.importorskip("torch")
MEMBERS = [Attachment(name=name, port=name) for name in ("a", "b", "c")]


def airtime(topology, **more):
    return Airtime(build(Wiring(topology=topology, capacity_bytes_per_s=1e4, **more), MEMBERS, "a"))


def test_pieces_take_turns_on_a_shared_medium():
    """1,000 bytes cross the air twice at 1e4 bytes/s: 0.2 s each, one after the other, whoever sends."""
    air = airtime("wifi")
    assert air.take("a", "b", 1000, 5.0) == Slot(gone_s=5.2, there_s=5.2)
    assert air.take("b", "c", 1000, 5.0) == Slot(gone_s=5.4, there_s=5.4)
    assert air.take("a", "b", 1000, 6.0) == Slot(gone_s=6.2, there_s=6.2)


def test_media_of_their_own_do_not_disturb_and_follow_each_other():
    air = airtime("switch", latency_s=0.5)
    assert air.take("a", "b", 1000, 0.0) == Slot(gone_s=0.1, there_s=pytest.approx(0.7))
    assert air.take("a", "c", 1000, 0.0) == Slot(gone_s=0.2, there_s=pytest.approx(0.8))  # a's port, then c's
    assert air.take("c", "b", 1000, 0.0) == Slot(gone_s=0.1, there_s=pytest.approx(0.8))  # b's port is busy till 0.2


def test_rates_change():
    air = airtime("wifi")
    air.shape({"air": 2e4})
    assert air.take("a", "b", 1000, 0.0).there_s == pytest.approx(0.1)


def test_small_media_take_small_pieces():
    assert airtime("wifi").piece_bytes("a", "b") == 1024
    assert airtime("wifi").piece_bytes("home", "a") == 65536


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    torch.set_num_threads(1)
    path = write_home(tmp_path_factory.mktemp("relay"), devices=("one", "two"))
    with potluck.Home.lab(path, time_scale=100, links="relay") as opened:
        yield opened


def test_a_step_over_the_relay_equals_one_machine(home):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    alone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    alone.load_state_dict(net.state_dict())
    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
    model = potluck.Model.from_torch(net, x, loss=torch.nn.functional.cross_entropy, example_targets=y)
    profile = home.profile(model, rows=(1, 4)).wait()
    n_layers = len(model.layers(True))
    plan = potluck.Plan(
        planner="by hand", model=profile.model, micro_batch=4,
        stages=(
            Stage(start=0, stop=1, devices=("one",), shares=(4,)),
            Stage(start=1, stop=n_layers, devices=("two",), shares=(4,)),
        ),
    )  # fmt: skip
    run = home.deploy(plan, model, optimizer=potluck.SGD(lr=0.1)).wait()
    run.fit([(x, y)]).wait()
    run.load_into(net)
    run.close()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(alone(x), y).backward()
    optimizer.step()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True))


def test_a_script_changes_the_rate(home):
    home.play([Bandwidth(at_s=0, medium="air", rate=8e6)])
    assert home._lab.director.wait(30)
    assert [error for *_, error in home._lab.director.happened] == [None]


def test_other_links_are_refused(tmp_path):
    with pytest.raises(UserError, match="telepathy"):
        potluck.Home.lab(write_home(tmp_path), links="telepathy")
