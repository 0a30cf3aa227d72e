"""Local steps against the same on one machine, in plain PyTorch; one local step is a synchronous
one.
"""

import copy

import pytest

import potluck
from potluck.errors import DeviceGone, UserError
from potluck.records import Plan, Stage
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
DEVICES = ("local-1", "local-2", "local-3")
ROWS = 8


def network(seed=0, *, norm=False):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)]
    return torch.nn.Sequential(*layers[:1], *[torch.nn.BatchNorm1d(12)] * norm, *layers[1:])


def data(n_batches, seed=1, rows=ROWS):
    torch.manual_seed(seed)
    return [(torch.randn(rows, 6), torch.randint(0, 3, (rows,))) for _ in range(n_batches)]


def plan_on(names, n_layers, micro_batch=4):
    """A stage of about as many layers for each device."""
    bounds = [round(p * n_layers / len(names)) for p in range(len(names) + 1)]
    stages = tuple(
        Stage(
            start=bounds[p],
            stop=bounds[p + 1],
            devices=(name,),
            shares=(micro_batch,),
            warm_up=len(names) - p,
        )
        for p, name in enumerate(names)
    )
    return Plan(
        planner="by hand",
        model="m",
        stages=stages,
        micro_batch=micro_batch,
        n_micro_batches=ROWS // micro_batch,
    )


@pytest.fixture
def home():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def deployed(home, net, optimizer, groups=(DEVICES[:2], DEVICES[2:]), **options):
    """One run of two devices, one of one."""
    x, y = data(1)[0]
    model = potluck.Model.from_torch(
        net, x[:4], loss=torch.nn.CrossEntropyLoss(), example_targets=y[:4], name="m"
    )
    n_layers = len(model.layers(True))
    return [
        home.deploy(plan_on(names, n_layers), model, optimizer=optimizer, **options).wait()
        for names in groups
    ]


def on_one_machine(net, batches, n_regions, every, make_optimizer, outer):
    """DiLoCo as Algorithm 1 says it: copies of the network, and torch's SGD for the outer step."""
    copies = [copy.deepcopy(net) for _ in range(n_regions)]
    optimizers = [make_optimizer(each.parameters()) for each in copies]
    outer_step = torch.optim.SGD(
        net.parameters(), lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0
    )
    loss_of, losses = torch.nn.CrossEntropyLoss(), []
    for start in range(0, len(batches), n_regions * every):
        turns = batches[start : start + n_regions * every]
        for k, (x, y) in enumerate(turns):
            r = k % n_regions
            optimizers[r].zero_grad()
            loss = loss_of(copies[r](x), y)
            loss.backward()
            optimizers[r].step()
            losses.append(loss.item())
        rows = [sum(len(y) for _, y in turns[r::n_regions]) for r in range(n_regions)]
        with torch.no_grad():
            for i, theta in enumerate(net.parameters()):
                theirs = [[*each.parameters()][i] for each in copies]
                mean = sum(n * t for n, t in zip(rows, theirs, strict=True)) / sum(rows)
                theta.grad = theta - mean
            outer_step.step()
            for each in copies:
                for theirs, theta in zip(each.parameters(), net.parameters(), strict=True):
                    theirs.copy_(theta)
    return losses


def apart(run, net):
    return max(
        float((run.state_dict()[name] - tensor).abs().max())
        for name, tensor in net.state_dict().items()
    )


@pytest.mark.long
@pytest.mark.parametrize("n_batches", [12, 11, 9])  # whole rounds, and a last one that is short
@pytest.mark.parametrize(
    ("inner", "theirs", "outer"),
    [
        (potluck.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1), potluck.OuterStep()),
        (
            potluck.AdamW(lr=0.01),
            lambda p: torch.optim.AdamW(p, lr=0.01),
            potluck.OuterStep(lr=1.0, momentum=0.0),
        ),
        (potluck.AdamW(lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01), potluck.OuterStep()),
    ],
)
def test_regions_end_where_one_machine_does(home, n_batches, inner, theirs, outer):
    net = network()
    runs, batches = deployed(home, net, inner), data(n_batches)
    history = potluck.local_steps(runs, batches, every=2, outer=outer).wait()
    expected = on_one_machine(net, batches, 2, 2, theirs, outer)
    assert history.losses == pytest.approx(expected, abs=1e-5)
    assert len(history.rounds) == -(-n_batches // 4)
    for run in runs:
        assert apart(run, net) < 1e-5


def test_one_local_step_is_a_synchronous_one(home):
    """An outer rate of 1, no momentum, plain SGD: the step on all regions' rows."""
    net = network()
    runs, batches = deployed(home, net, potluck.SGD(lr=0.2)), data(8)
    outer = potluck.OuterStep(lr=1.0, momentum=0.0)
    history = potluck.local_steps(runs, batches, every=1, outer=outer).wait()
    assert len(history.rounds) == 4
    optimizer, loss_of = torch.optim.SGD(net.parameters(), lr=0.2), torch.nn.CrossEntropyLoss()
    for (x0, y0), (x1, y1) in zip(batches[::2], batches[1::2], strict=True):
        optimizer.zero_grad()
        loss_of(net(torch.cat([x0, x1])), torch.cat([y0, y1])).backward()
        optimizer.step()
    for run in runs:
        assert apart(run, net) < 1e-6


@pytest.mark.long
def test_buffers_are_the_mean_of_the_regions(home):
    net = network(norm=True)
    runs = deployed(home, net, potluck.SGD(lr=0.1), groups=(DEVICES[:1], DEVICES[1:2]))
    potluck.local_steps(runs, data(4), every=2).wait()
    first, second = (run.state_dict() for run in runs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_it_costs_the_result_is_told(home):
    runs, seen = deployed(home, network(), potluck.SGD(lr=0.5)), []
    history = potluck.local_steps(runs, data(12), every=3, on_round=seen.append).wait()
    assert tuple(seen) == history.rounds
    assert all(each.apart_frac > 0 for each in history.rounds)
    weights = sum(4 * p.numel() for p in network().parameters())
    assert {each.exchanged_bytes for each in history.rounds} == {4 * weights}  # two come, two go
    assert "not the weights of one machine" in repr(history)


def test_a_protected_region_goes_back_to_no_older_weights(home):
    runs = deployed(home, network(), potluck.SGD(lr=0.1), protect=2)
    potluck.local_steps(runs, data(8), every=2).wait()
    mine = [run.live_weights.pull() for run in runs]
    assert all(torch.equal(mine[0][name], mine[1][name]) for name in mine[0])
    assert all(run.is_protected for run in runs)


def test_refuses_what_makes_no_sense(home):
    runs = deployed(home, network(), potluck.SGD(lr=0.1))
    for arguments, words in (
        ((runs[:1], data(2)), "two regions or more"),
        (([runs[0], runs[0]], data(2)), "has a part in two regions"),
    ):
        with pytest.raises(UserError, match=words):
            potluck.local_steps(*arguments, every=1)
    for options in ({"every": 0}, {"every": 1.5}, {"every": 1, "epochs": 0}):
        with pytest.raises(UserError, match="whole number from 1 up"):
            potluck.local_steps(runs, data(2), **options)
    with pytest.raises(UserError, match="one epoch"):
        potluck.local_steps(runs, iter(data(2)), every=1, epochs=2)
    for options in ({"lr": 0}, {"lr": "fast"}, {"momentum": 1}, {"momentum": float("nan")}):
        with pytest.raises(UserError, match="outer step's"):
            potluck.OuterStep(**options)


SHAPES_OF_BATCHES = {
    "pair": lambda x, y: (x, y),
    "mapping": lambda x, y: {"input": x, "labels": y},
    "targets first": lambda x, y: {"labels": y, "input": x},
    "with what is not given": lambda x, y: {"mask": None, "input": x, "labels": y},
    "inputs in a mapping": lambda x, y: ({"input": x}, y),
    "two mappings": lambda x, y: ({"input": x}, {"labels": y}),
    "inputs in a tuple": lambda x, y: ((x,), y),
    "lists": lambda x, y: [[x], [y]],
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES_OF_BATCHES)
def test_regions_count_by_their_rows_whatever_their_batches_look_like(home, shape):
    net, sizes = network(), (8, 3, 2, 6)
    batches = [data(1, seed=n, rows=rows)[0] for n, rows in enumerate(sizes)]
    one = copy.deepcopy(net)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    for left, right in zip(batches[::2], batches[1::2], strict=True):
        x, y = (torch.cat(pair) for pair in zip(left, right, strict=True))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(one(x), y).backward()
        optimizer.step()
    runs = deployed(home, net, potluck.SGD(lr=0.1))
    given = [SHAPES_OF_BATCHES[shape](*batch) for batch in batches]
    outer = potluck.OuterStep(lr=1.0, momentum=0.0)
    potluck.local_steps(runs, given, every=1, outer=outer).wait()
    for run in runs:
        for name, expected in one.state_dict().items():
            torch.testing.assert_close(run.state_dict()[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_moving_average_that_outer_steps_would_not_be_in_is_refused(home):
    runs = deployed(home, network(), potluck.SGD(lr=0.1))
    runs[1].fit(data(1), ema=0.9).wait()
    with pytest.raises(UserError, match="moving average"):
        potluck.local_steps(runs, data(2), every=1)
    runs[1].fit(data(1), optimizer=potluck.SGD(lr=0.1)).wait()
    potluck.local_steps(runs, data(2), every=1).wait()


def test_the_others_go_on_without_a_region_that_is_lost(home):
    """Its device goes; what that had of the round is theirs in the next: no batch is left out."""
    net, batches = network(), data(9)
    outer = potluck.OuterStep()
    alone = copy.deepcopy(net)
    runs = deployed(home, net, potluck.SGD(lr=0.1), protect=False)

    def lose(done):
        if done.step == 2:
            memory_of(home).kill(DEVICES[2])

    history = potluck.local_steps(runs, batches, every=2, outer=outer, on_round=lose).wait()
    # two rounds of one region follow the first of two: batches 4 and 6, then those of the lost one
    regions, rest = [[0, 2], [1, 3]], [[4, 6], [5, 7], [8]]
    expected = []
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for turns in (regions, *([each] for each in rest)):
        copies = [copy.deepcopy(alone) for _ in turns]
        losses = [
            trained(each, [batches[b] for b in part])
            for each, part in zip(copies, turns, strict=True)
        ]
        expected += [loss for pair in zip(*losses, strict=True) for loss in pair]
        with torch.no_grad():
            for theta, *theirs in zip(
                alone.parameters(), *(c.parameters() for c in copies), strict=True
            ):
                theta.grad = theta - sum(theirs) / len(theirs)
        optimizer.step()
    assert history.losses == pytest.approx(expected, abs=1e-5)
    assert [list(each.lost) for each in history.rounds] == [[], [1], [1], [1]]
    assert "local-3" in history.rounds[1].lost[1]
    assert "3 rounds without a region" in repr(history)
    assert apart(runs[0], alone) < 1e-5


def trained(net, batches):
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_last_region_that_is_lost_ends_the_training(home):
    runs = deployed(home, network(), potluck.SGD(lr=0.1), protect=False)

    def lose(_):
        for device in DEVICES:
            memory_of(home).kill(device)

    with pytest.raises(DeviceGone, match="local-"):
        potluck.local_steps(runs, data(12), every=2, on_round=lose).wait()
