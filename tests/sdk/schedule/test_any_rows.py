"""Any number of rows on any plan: each is learned from once, in micro-batches of the plan's size
and a smaller one.

Plans and numbers of rows are drawn; programs are carried out with the very segments that devices
load.
"""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.schedule.test_programs import execute, follow, gradients, make

import potluck
from potluck.errors import ModelError, PlanError
from potluck.records import Plan, Stage
from potluck.schedule import policies
from potluck.schedule.micro_batches import as_divided, check_company, divide, shared, sizes
from potluck.schedule.pipeline import compile_training
from potluck.schedule.stage_graph import chain
from potluck.schedule.standby import REPLAY, Standby, compile_follow

torch = pytest.importorskip("torch")

LR = 0.1
DEVICES = ("a", "b", "c")


# --- the division itself --------------------------------------------------------------------------


@given(rows=st.integers(1, 300), micro_batch=st.integers(1, 40), together=st.sampled_from([1, 2]))
def test_micro_batches_have_all_rows_and_the_plans_size(rows, micro_batch, together):
    found = sizes(rows, micro_batch, together)
    assert sum(found) == rows
    assert len(found) <= -(-rows // micro_batch)
    assert max(found) <= micro_batch + (together > micro_batch // 2 and together > 1)
    assert all(size == micro_batch for size in found[:-2])
    if together == 1:
        assert all(size == micro_batch for size in found[:-1])
    if rows > 1 < micro_batch:
        assert min(found) >= together


@given(
    shares=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    rows=st.integers(1, 60),
    data=st.data(),
)
def test_shares_have_all_rows_in_the_plans_proportion(shares, rows, data):
    together = data.draw(st.sampled_from([1, min(2, *shares)]))
    found = shared(shares, rows, together)
    assert sum(found) == rows
    assert found[shares.index(max(shares))] > 0
    assert shared(shares, sum(shares), together) == tuple(shares)
    exact = [rows * share / sum(shares) for share in shares]
    assert all(abs(n - part) < 2 * len(shares) for n, part in zip(found, exact, strict=True))
    if together == 1:
        assert all(abs(n - part) < 1 for n, part in zip(found, exact, strict=True))
    elif rows > 1:
        assert 1 not in found  # nobody learns from a single row that had company
    if rows <= sum(shares):
        assert all(n <= share + together - 1 for n, share in zip(found, shares, strict=True))


# --- rows as numbers ------------------------------------------------------------------------------


@st.composite
def splits(draw, *sizes):
    """Stages as (devices, shares) of a micro-batch of one of these sizes."""
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        micro_batch = draw(st.sampled_from(sizes))
        devices = draw(st.permutations(DEVICES))[: draw(st.integers(1, min(3, micro_batch)))]
        n = len(devices) - 1
        ends = (
            sorted(draw(st.sets(st.integers(1, micro_batch - 1), min_size=n, max_size=n)))
            if n
            else ()
        )
        stages.append((tuple(devices), tuple(b - a for a, b in pairwise((0, *ends, micro_batch)))))
    return stages


def divided(plan, segments, rows, policy=None):
    """The division of so many rows, and the schedule for it."""
    division = divide(plan, segments, rows)
    make_schedule = policies.POLICIES[policy or "1f1b"]
    return division, make_schedule(as_divided(plan, division))


@pytest.mark.long
@settings(max_examples=min(settings().max_examples, 150), deadline=None)
@given(
    split=st.one_of(splits(8), splits(2, 4, 8, 16)),
    rows=st.integers(1, 40),
    norm_values=st.sampled_from([0, 1, 4]),
    multiple=st.sampled_from([1, 3]),
    fed_whole=st.booleans(),
    policy=st.sampled_from(["1f1b", "fill-drain"]),
    data=st.data(),
)
def test_every_row_goes_where_it_belongs(
    split, rows, norm_values, multiple, fed_whole, policy, data
):
    plan, segments = make(split, multiple=multiple)
    segments = tuple(replace(segment, norm_values=norm_values) for segment in segments)
    division, schedule = divided(plan, segments, rows, policy)
    compiled = compile_training(
        plan, segments, {"name": "sgd"}, schedule=schedule, division=division, fed_whole=fed_whole
    )
    vectors = gradients(plan, segments)
    home, steps, backs = follow(
        compiled,
        plan,
        multiple,
        pick=lambda n: data.draw(st.integers(0, n - 1)) if n > 1 and rows < 9 else 0,
        vectors=vectors,
        division=division,
    )
    assert sorted(row for value in home.values() for row in value) == list(range(rows * multiple))
    assert backs == {segment.name: rows for segment in segments}
    assert sum(sum(result.rows) for result in compiled.results) == rows
    for device, name in vectors:  # every replica takes the step, whether it had rows or not
        assert (device, name) in steps
    for p, stage in enumerate(plan.stages):
        fracs = [
            item.attrs["share_frac"]
            for device in stage.devices
            for item in compiled.programs[device].instructions
            if item.op == "gradients" and item.attrs["segment"] == segments[p].name
        ]
        assert sum(fracs) == pytest.approx(float(len(stage.devices) > 1))


@pytest.mark.few(10)
@pytest.mark.parametrize("rows", range(1, 41))
def test_interleaved_stages_take_any_rows(rows):
    plan, segments = make(
        [(("a", "b"), (5, 3)), (("c",), (8,)), (("a", "b"), (5, 3)), (("c",), (8,))]
    )
    division, schedule = divided(plan, segments, rows, "interleaved")
    compiled = compile_training(plan, segments, {}, schedule=schedule, division=division)
    _, _, backs = follow(compiled, plan, vectors=gradients(plan, segments), division=division)
    assert backs == {segment.name: rows for segment in segments}


@pytest.mark.parametrize("rows", [37, 31, 5, 33, 64, 97])
def test_a_step_takes_as_many_instructions_as_it_has_micro_batches(rows):
    """A prime number of rows must not cost more than the next multiple of the micro-batch."""
    plan, segments = make([(("a", "b"), (5, 3)), (("c",), (8,))])
    lengths = []
    for n in (rows, -(-rows // 8) * 8):
        division, schedule = divided(plan, segments, n)
        compiled = compile_training(plan, segments, {}, schedule=schedule, division=division)
        lengths.append([len(program.instructions) for program in compiled.programs.values()])
    assert all(few <= many for few, many in zip(*lengths, strict=True))


@given(rows=st.integers(1, 40), stage=st.integers(0, 1), size=st.sampled_from([2, 8, 16]))
@settings(deadline=None)
def test_a_standby_replays_the_very_micro_batches(rows, stage, size):
    plan, segments = make([(("a",), (8,)), (("b",), (size,))])
    division, schedule = divided(plan, segments, rows)
    standbys = (Standby(stage=stage, devices=("c",), way=REPLAY),)
    train = compile_training(
        plan, segments, {}, schedule=schedule, division=division, standbys=standbys, to="1/follow"
    )
    followed = compile_follow("follow", plan, segments, {}, standbys, division=division)
    owner = train.programs[plan.stages[stage].devices[0]]

    def computed(program):
        return [
            (item.op, item.attrs.get("rows"), item.attrs.get("scale"), item.attrs["key"])
            for item in program.instructions
            if item.op in ("run", "backward")
        ]

    assert sorted(computed(followed.programs["c"]), key=str) == sorted(computed(owner), key=str)
    posted = {
        item.attrs["name"]
        for item in owner.instructions
        if item.op == "send" and "to" in item.attrs
    }
    heard = {item.outputs[0] for item in followed.programs["c"].instructions if item.op == "recv"}
    assert posted == {name for name in heard if name.startswith("standby")}


# --- real segments --------------------------------------------------------------------------------


def make_net(normed):
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d if normed else torch.nn.Identity
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8),
        norm(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 8),
        norm(8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 3),
    ).double()


def make_data(rows):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 3, (rows,), generator=generator)
    return torch.randn(rows, 6, generator=generator, dtype=torch.float64), y


LOSSES = {
    "mean": torch.nn.functional.cross_entropy,
    "weighted mean": torch.nn.CrossEntropyLoss(torch.tensor([1.0, 4.0, 0.5], dtype=torch.float64)),
}


@pytest.fixture(scope="module")
def models():
    """By (normed, loss): the network and its model."""
    x, y = make_data(4)
    nets = {(normed, loss): make_net(normed) for normed in (False, True) for loss in LOSSES}
    return {
        key: (net, potluck.Model.from_torch(net, x, loss=LOSSES[key[1]], example_targets=y))
        for key, net in nets.items()
    }


def plan_of(model, split, micro_batch):
    n_layers = len(model.layers(True))
    split = split[:n_layers]
    bounds = [round(p * n_layers / len(split)) for p in range(len(split) + 1)]
    sizes = [sum(shares) for _, shares in split]
    depths = policies.warm_ups_of_rows(
        sizes, [4 * micro_batch // n for n in sizes], chain(len(split))
    )
    stages = tuple(
        Stage(start=a, stop=b, devices=devices, shares=shares, warm_up=depth, micro_batch=size)
        for (a, b), (devices, shares), size, depth in zip(
            pairwise(bounds), split, sizes, depths, strict=True
        )
    )
    return Plan(
        planner="test", model="m", stages=stages, micro_batch=micro_batch, n_micro_batches=4
    )


def a_step(model, plan, rows):
    """One step of SGD on `rows` rows in this process: (loss, every device's state, the
    division).
    """
    from potluck_agent.worker.training import TrainingSegment
    from potluck_wire.segment import dumps, loads

    pieces = [model.segment(stage.start, stage.stop, train=True) for stage in plan.stages]
    records = tuple(record for record, _ in pieces)
    check_company(plan, records)
    fed = model.fed(*make_data(rows))
    model.check_inputs(*make_data(rows), train=True)
    division, schedule = divided(plan, records, rows)
    compiled = compile_training(
        plan, records, {"name": "sgd", "lr": LR}, schedule=schedule, division=division
    )
    loaded = {}
    for stage, (record, graph) in zip(plan.stages, pieces, strict=True):
        for device in stage.devices:
            segment = loaded[device, record.name] = TrainingSegment(loads(dumps(graph)))
            for name in segment.names():
                segment.write(name, model.state()[name])

    def run(device, attrs, inputs, n_outputs):
        return loaded[device, attrs["segment"]].forward(
            [torch.as_tensor(x) for x in inputs],
            key=attrs["key"],
            train=True,
            rows=tuple(attrs["rows"]),
            micro_batch=attrs["micro_batch"],
        )

    def backward(device, attrs, inputs, n_outputs):
        return loaded[device, attrs["segment"]].backward(attrs["key"], inputs, attrs["scale"])

    def vectors(device, attrs):
        return loaded[device, attrs["segment"]].gradients(attrs["share_frac"])

    home, steps = execute(
        compiled,
        fed,
        run,
        backward,
        vectors,
        concat=lambda parts: torch.cat(
            [part.reshape(1) if part.dim() == 0 else part for part in parts]
        ),
        add=lambda parts: sum(parts[1:], parts[0]),
    )
    for (device, name), vector in steps.items():
        loaded[device, name].step(vector, {"name": "sgd", "lr": LR})
    losses = [
        (home[r.device, r.value].reshape(-1) * torch.tensor(r.rows)).sum() for r in compiled.results
    ]
    return float(sum(losses)) / rows, loaded, division


def a_step_of_torch(net, model, plan, rows, division, loss):
    """The same on one machine, by plain torch: (loss, state).

    Replicas normalise their own rows, as documented, and stages those of their own micro-batches.
    """
    net = copy.deepcopy(net)
    x, y = make_data(rows)
    norms = [
        name for name, module in net.named_children() if isinstance(module, torch.nn.BatchNorm1d)
    ]
    stage_of = {
        name: p
        for p, stage in enumerate(plan.stages)
        for name in norms
        if f"{name}.weight" in model.state_names(stage.start, stage.stop, train=True)
    }
    running = {
        (name, i): (
            net.get_submodule(name).running_mean.clone(),
            net.get_submodule(name).running_var.clone(),
        )
        for name, p in stage_of.items()
        for i in range(len(plan.stages[p].devices))
    }
    values = x
    for name, module in net.named_children():
        if name not in stage_of:
            values = module(values)
            continue
        parts = division[stage_of[name]]
        sizes = [(n, i) for part in parts for i, n in enumerate(part.shares)]
        pieces = zip(sizes, values.split([n for n, _ in sizes]), strict=True)
        values = torch.cat(
            [
                torch.nn.functional.batch_norm(
                    piece, *running[name, i], module.weight, module.bias, True, 0.1, module.eps
                )
                for (_, i), piece in pieces
                if len(piece)
            ]
        )
    total = LOSSES[loss](values, y)
    total.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= LR * parameter.grad
        for name, p in stage_of.items():
            fracs = [
                sum(part.shares[i] for part in division[p]) / rows
                for i in range(len(plan.stages[p].devices))
            ]
            for k, buffer in enumerate(
                (net.get_submodule(name).running_mean, net.get_submodule(name).running_var)
            ):
                buffer.copy_(
                    sum(
                        f * pair[k]
                        for f, pair in zip(fracs, running_of(running, name), strict=True)
                    )
                )
            net.get_submodule(name).num_batches_tracked += sum(
                part.rows > 0 for part in division[p]
            )
    return float(total.detach()), net.state_dict()


def running_of(running, name):
    return [pair for (norm, _), pair in running.items() if norm == name]


@pytest.mark.long
@settings(max_examples=min(settings().max_examples // 2, 120), deadline=None)
@given(
    micro_batch=st.integers(1, 6),
    rows=st.integers(1, 20),
    normed=st.booleans(),
    loss=st.sampled_from(sorted(LOSSES)),
    data=st.data(),
)
def test_a_step_on_any_rows_is_that_of_one_machine(models, micro_batch, rows, normed, loss, data):
    net, model = models[normed, loss]
    sizes = data.draw(st.sampled_from([(1,), (1, 2), (1, 2, 4), (4, 1)]))
    plan = plan_of(model, data.draw(splits(*(n * micro_batch for n in sizes))), micro_batch)
    records = [model.segment(stage.start, stage.stop, train=True)[0] for stage in plan.stages]
    alone = any(
        1 in stage.shares and r.norm_values for stage, r in zip(plan.stages, records, strict=True)
    )
    if alone or (normed and rows == 1):
        with pytest.raises(
            (PlanError, ModelError), match="more than 1 value per channel when training"
        ):
            a_step(model, plan, rows)
        return
    got, loaded, division = a_step(model, plan, rows)
    expected, state = a_step_of_torch(net, model, plan, rows, division, loss)
    assert got == pytest.approx(expected, rel=1e-6)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # gradients of replicas are added as float32
    for stage, record in zip(plan.stages, records, strict=True):
        for device in stage.devices:
            segment = loaded[device, record.name]
            for name in state.keys() & set(segment.names()):
                if "num_batches" not in name or device == stage.lead:
                    torch.testing.assert_close(segment.read(name), state[name], **tolerance)


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_is_refused_by_the_name_of_the_batch_norm(models, rows):
    _, model = models[True, "mean"]
    if rows == 2:
        assert model.check_inputs(*make_data(2), train=True) == 2
    else:
        with pytest.raises(
            ModelError,
            match=r"a batch of 1 row .* more than 1 value per channel when training \(1\)",
        ):
            model.check_inputs(*make_data(1), train=True)


@pytest.mark.long
def test_one_row_of_a_picture_has_many_values(models):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    x, y = torch.randn(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    assert model.check_inputs(x[:1], y[:1], train=True) == 1
    assert {layer.norm_values for layer in model.layers(True)} <= {0, 4}
    assert not any(layer.norm_values for layer in model.layers())
