"""What training scripts have around their steps: callbacks, loggers, saves, and places in the data
that a resumed run goes on from.
"""

import copy
import datetime
import math
import random
import threading
import time
from concurrent.futures import CancelledError
from itertools import product
from types import MethodType

import pytest
from tests.sdk.run.conftest import make_plan
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import UserError
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
ROWS = 40
BATCH = 8
MICRO = 4
N_BATCHES = ROWS // BATCH


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(12, 3)
    )


def make_data():
    torch.manual_seed(1)
    return torch.randn(ROWS, 6), torch.randint(0, 3, (ROWS,))


def deployed(home, net=None, *, resume=None, protect=None, batch=BATCH):
    x, y = make_data()
    loss = torch.nn.functional.cross_entropy
    model = potluck.Model.from_torch(net or make_net(), x[:2], loss=loss, example_targets=y[:2])
    stages = [((A,), (MICRO,)), ((B,), (MICRO,))]
    plan = make_plan(model, *stages, micro_batch=MICRO, n_micro_batches=batch // MICRO)
    return home.deploy(plan, model, resume=resume, protect=protect).wait()


def test_a_step_may_begin_a_fit_while_the_run_is_stopped(pair):
    """Whoever stops it waits for the step, which does not wait for that."""
    run, steps = deployed(pair), threading.Event()
    begun = []

    def on_step(step, loss):
        if not steps.is_set():
            steps.set()
            time.sleep(0.2)  # by then the other one waits
            begun.append(run.fit(make_data()))

    run.fit(make_data(), epochs=100, on_step=on_step)
    assert steps.wait(TIMEOUT_S)
    assert run.stop(TIMEOUT_S) == 1
    assert len(begun[0].wait().losses) == N_BATCHES
    run.close()


# --- callbacks ------------------------------------------------------------------------------------


def test_each_epoch_is_told_when_all_its_steps_are_done(pair):
    run, epochs = deployed(pair), []

    def on_epoch(epoch, history):
        epochs.append((epoch, run.step, history.losses))
        assert not engine_of(run).n_in_flight
        run.state_dict()

    history = run.fit(make_data(), epochs=3, on_epoch=on_epoch).wait()
    assert [epoch for epoch, _, _ in epochs] == [0, 1, 2]
    assert [step for _, step, _ in epochs] == [N_BATCHES * (i + 1) for i in range(3)]
    assert sum((losses for _, _, losses in epochs), ()) == history.losses
    run.close()


def ended(when):
    return potluck.StopTraining if when else when


def raise_stop(*_):
    raise potluck.StopTraining


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "end",
    [lambda *_: potluck.StopTraining, lambda *_: potluck.StopTraining("enough"), raise_stop],
    ids=["returned", "made", "raised"],
)
def test_a_callback_ends_the_training_and_its_history_is_whole(pair, end):
    run = deployed(pair)
    history = run.fit(make_data(), epochs=9, on_step=lambda step, _: step == 7 and end()).wait()
    assert 7 <= len(history.losses) <= 9  # those under way are taken
    assert run.step == len(history.losses)
    more = run.fit(make_data(), epochs=9, on_epoch=end).wait()
    assert len(more.losses) == N_BATCHES
    run.close()


def test_what_a_callback_raises_ends_the_training_with_it(pair):
    run = deployed(pair)
    with pytest.raises(ZeroDivisionError):
        run.fit(make_data(), on_step=lambda step, loss: 1 / 0).wait()
    assert run.is_open
    run.close()


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_step": 7}, "on_step is called"),
        ({"on_epoch": "epoch"}, "on_epoch is called"),
        ({"log": print}, "a logger has log"),
        ({"save_to": "x"}, "save_every how often"),
        ({"save_to": "x", "save_every": 0}, "a number of steps or a timedelta, got 0"),
        ({"save_to": "x", "save_every": True}, "got True"),
        ({"save_every": 3}, "one of them is missing"),
        ({"accumulate": 0}, "accumulate is a number of batches"),
        ({"clip_norm": -1.0}, "clip_norm is a number of 0 or more"),
        ({"clip_norm": math.nan}, "clip_norm is a number"),
        ({"clip_norm": True}, "clip_norm is a number"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "which comes first"),
        ({"norm_order": 0}, "norm_order"),
        ({"ema": 1.5}, "ema is a number from 0 to 1"),
        ({"schedule": 3}, "a schedule is one of torch's"),
        ({"schedule": lambda step: 1.0, "schedule_every": "epoch"}, "for a scheduler of torch"),
        ({"schedule_every": "week"}, '"step" or "epoch"'),
        ({"resume": True}, "not known how far"),
        ({"optimizer": "adam"}, "one of potluck's or of torch's, got str"),
        ({"optimizer": torch.optim.AdamW}, "got type"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(pair, options, says):
    run = deployed(pair)
    with pytest.raises(UserError, match=says):
        run.fit(make_data(), **options)
    assert run.step == 0
    run.close()


@pytest.mark.parametrize("kind", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_on_the_step_of_an_optimizer_are_refused(pair, kind):
    net = make_net()
    run, optimizer = deployed(pair, net), torch.optim.SGD(net.parameters(), 0.1)
    handle = getattr(optimizer, kind)(lambda *_: None)
    with pytest.raises(UserError, match="hooks on its step"):
        run.fit(make_data(), optimizer=optimizer)
    handle.remove()
    assert len(run.fit(make_data(), optimizer=optimizer).wait().losses) == N_BATCHES
    getattr(optimizer, kind)(lambda *_: None)
    with pytest.raises(UserError, match="hooks on its step"):
        run.fit(make_data()).wait()
    run.close()


def test_hooks_on_the_step_of_all_optimizers_are_refused(pair):
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    net = make_net()
    run, optimizer = deployed(pair, net), torch.optim.SGD(net.parameters(), 0.1)
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        with pytest.raises(UserError, match="hooks on its step, as all optimizers"):
            run.fit(make_data(), optimizer=optimizer)
    finally:
        handle.remove()
    assert len(run.fit(make_data(), optimizer=optimizer).wait().losses) == N_BATCHES
    run.close()


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_in_the_place_of_an_optimizers_own_is_refused(pair, scheduled):
    net = make_net()
    run, optimizer = deployed(pair, net), torch.optim.SGD(net.parameters(), 0.1)
    step = optimizer.step
    optimizer.step = MethodType(lambda self, closure=None: step(closure), optimizer)
    if scheduled:  # a scheduler puts its own around it
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(UserError, match="a step that was put in the place of its class's"):
        run.fit(make_data(), optimizer=optimizer)
    run.close()


def test_a_torch_optimizer_that_does_not_suit_is_refused_by_name(pair):
    net, other = make_net(), make_net()
    run, optim = deployed(pair, net), torch.optim
    moved = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for parameter in net.parameters():
        moved.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    coupled, *others = net.parameters()
    refused = {
        "differ in decoupled_weight_decay": optim.AdamW(
            [{"params": coupled, "decoupled_weight_decay": False}, {"params": others}]
        ),
        "dampening=0.5": optim.SGD(net.parameters(), 0.1, momentum=0.9, dampening=0.5),
        "initial_accumulator_value": optim.Adagrad(net.parameters(), initial_accumulator_value=0.1),
        "LBFGS is no optimizer that devices know": optim.LBFGS(net.parameters()),
        "that is not the model's": optim.SGD(other.parameters(), 0.1),
        r"0\.bias is trained by the model": optim.SGD([net[3].weight], 0.1),
        "has made steps of its own": moved,
    }
    for says, optimizer in refused.items():
        with pytest.raises(UserError, match=says):
            run.fit(make_data(), optimizer=optimizer)
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optim.SGD(net.parameters(), 0.1))
    with pytest.raises(UserError, match="goes by a metric"):
        run.fit(make_data(), schedule=plateau)
    one, two = (optim.SGD(net.parameters(), 0.1) for _ in range(2))
    with pytest.raises(UserError, match="one of another optimizer"):
        run.fit(make_data(), optimizer=one, schedule=optim.lr_scheduler.StepLR(two, 1))
    run.close()


@pytest.mark.long
def test_rates_that_a_callback_changes_hold_from_the_next_epoch_on(pair):
    """As ReduceLROnPlateau is used, or a rate is set by hand."""
    net = make_net()
    run, alone = deployed(pair, net), make_net()
    made = torch.optim.SGD(net.parameters(), 0.1)
    run.fit(
        make_data(),
        epochs=3,
        optimizer=made,
        on_epoch=lambda epoch, _: made.param_groups[0].update(lr=0.1 / (epoch + 2)),
    ).wait()
    assert run.history.losses[:N_BATCHES] != run.history.losses[N_BATCHES : 2 * N_BATCHES]
    again = deployed(pair, alone)
    for epoch in range(3):
        again.fit(make_data(), optimizer=potluck.SGD(0.1 / (epoch + 1))).wait()
    assert run.history.losses == again.history.losses
    for one in (run, again):
        one.close()


# --- loggers --------------------------------------------------------------------------------------


class LikeWandb:
    def __init__(self):
        self.told = {}

    def log(self, metrics, step):
        self.told[step] = metrics


def test_loggers_are_told_of_every_step(pair, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX import SummaryWriter
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    run, like_wandb = deployed(pair), LikeWandb()
    writer = SummaryWriter(str(tmp_path))
    history = run.fit(
        make_data(), log=[writer, like_wandb], clip_norm=0.5, schedule=lambda step: 1 / (step + 1)
    ).wait()
    writer.close()
    assert [like_wandb.told[step]["loss"] for step in (1, 2, 3, 4, 5)] == [*history.losses]
    assert [m["lr"] for m in like_wandb.told.values()] == [1e-3 / (i + 1) for i in range(5)]
    assert [m["gradient_norm"] for m in like_wandb.told.values()] == [*history.gradient_norms]
    (file,) = tmp_path.glob("events.*")
    data, found = file.read_bytes(), {}
    while data:  # length, its checksum, event, its checksum
        length = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    assert [found["loss", step] for step in range(1, 6)] == pytest.approx(history.losses)
    assert found["lr", 2] == pytest.approx(5e-4)
    run.close()


def test_tensorboard_reads_what_its_own_writer_is_told(pair, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    run, writer = deployed(pair), SummaryWriter(str(tmp_path))
    history = run.fit(make_data(), log=writer).wait()
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [event.value for event in events] == pytest.approx(history.losses)
    assert [event.step for event in events] == [1, 2, 3, 4, 5]
    run.close()


# --- several batches as one -----------------------------------------------------------------------


def test_accumulated_batches_are_one_step_of_all_their_rows(pair):
    run, net = deployed(pair), make_net().eval()  # without masks both are alike
    run.close()
    x, y = make_data()
    loss = torch.nn.functional.cross_entropy
    model = potluck.Model.from_torch(
        torch.nn.Sequential(net[0], net[1], net[3]), x[:2], loss=loss, example_targets=y[:2]
    )
    plan = make_plan(
        model, ((A,), (MICRO,)), ((B,), (MICRO,)), micro_batch=MICRO, n_micro_batches=2
    )
    run = pair.deploy(plan, model).wait()
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    history = run.fit(batches, optimizer=potluck.SGD(0.1), accumulate=2).wait()
    assert history.rows == (16, 16, 8)
    alone = copy.deepcopy(torch.nn.Sequential(net[0], net[1], net[3]))
    optimizer, losses = torch.optim.SGD(alone.parameters(), 0.1), []
    for group in (batches[:2], batches[2:4], batches[4:]):
        total = 0.0
        for inputs, targets in group:
            part = loss(alone(inputs), targets) / len(group)
            part.backward()
            total += part.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    assert history.losses == pytest.approx(losses, abs=1e-6)
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(run.state_dict()[name], tensor, atol=1e-6)
    run.close()


def test_batches_of_other_lengths_are_not_accumulated(pair):
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2))
    ids, y = torch.randint(0, 9, (4, 5)), torch.randn(4, 5, 2)
    model = potluck.Model.from_torch(
        net, ids, loss=torch.nn.functional.mse_loss, example_targets=y, sequence_dims=(1, 1)
    )
    run = pair.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    with pytest.raises(UserError, match="differ in more than their rows"):
        run.fit([(ids, y), (ids[:, :3], y[:, :3])], accumulate=2).wait()
    run.close()


# --- saves and places in the data -----------------------------------------------------------------


def loaders():
    x, y = make_data()
    data, utils = torch.utils.data.TensorDataset(x, y), torch.utils.data
    yield "in order", lambda: utils.DataLoader(data, BATCH)
    yield (
        "generator",
        lambda: utils.DataLoader(
            data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(7)
        ),
    )
    yield "tensors", make_data
    yield "list", lambda: [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return
    yield (
        "stateful",
        lambda: StatefulDataLoader(
            data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(7)
        ),
    )


LOADERS = dict(loaders())


@pytest.mark.few(len(LOADERS))
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_goes_on_with_the_next_batch(pair, tmp_path, kind, accumulate, part):
    """The next losses are those of a run that was not interrupted, to the bit, at every step."""
    options = {"epochs": 3, "optimizer": potluck.AdamW(1e-2), "accumulate": accumulate}
    uninterrupted = deployed(pair)
    expected = uninterrupted.fit(LOADERS[kind](), **options).wait().losses
    uninterrupted.close()
    stop = random.Random(kind).sample(range(1, len(expected) - 1), 3)[part]
    run = deployed(pair)
    run.fit(LOADERS[kind](), on_step=lambda step, _: ended(step == stop), **options).wait()
    run.save(tmp_path / "run")
    begun = run.history.losses
    run.close()
    again = deployed(pair, resume=tmp_path / "run")
    rest = again.fit(LOADERS[kind](), resume=True, **options).wait().losses
    assert (*begun, *rest) == expected
    again.close()


def other_batches():
    """The data in batches of other sizes; how its loader is called, and the plan's batch."""
    x, y = make_data()
    data, utils = torch.utils.data.TensorDataset(x, y), torch.utils.data
    yield "in order", lambda: utils.DataLoader(data, 5), BATCH
    yield (
        "generator",
        lambda: utils.DataLoader(
            data, BATCH + 1, shuffle=True, generator=torch.Generator().manual_seed(7)
        ),
        BATCH,
    )
    yield "tensors", make_data, BATCH + MICRO  # as the plan divides them
    sizes = [8, 7, 8, 7, 10]
    yield "list", lambda: [*zip(x.split(sizes), y.split(sizes), strict=True)], BATCH
    yield "list", lambda: [(x[:BATCH], y[:BATCH])], BATCH  # shorter than what was trained on
    if "stateful" in LOADERS:
        loading = pytest.importorskip("torchdata.stateful_dataloader")
        drawn = torch.Generator().manual_seed(7)
        others = {"batch_size": 5, "shuffle": True, "generator": drawn}
        yield "stateful", lambda: loading.StatefulDataLoader(data, **others), BATCH


@pytest.mark.long
@pytest.mark.parametrize(("kind", "make", "batch"), [*other_batches()])
def test_a_run_does_not_go_on_in_other_batches(pair, tmp_path, kind, make, batch):
    """So many of them have other rows: some would be left out, or taken twice."""
    run = deployed(pair)
    run.fit(LOADERS[kind](), epochs=2, on_step=lambda step, _: ended(step == 7)).wait()
    run.save(tmp_path / "run")
    step = run.step
    run.close()
    again = deployed(pair, resume=tmp_path / "run", batch=batch)
    with pytest.raises(UserError, match=r"(24 rows|in batches of 8 rows).* (have|gives) \d+\."):
        again.fit(make(), epochs=2, resume=True).wait()
    assert again.step == step
    again.close()


class ByEpoch(torch.utils.data.Sampler):
    """Another order in each epoch, as DistributedSampler has."""

    def __init__(self, n):
        self.n, self.epoch = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        self.epoch += 1
        draw = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.n, generator=draw).tolist())


class Batched(ByEpoch):
    """Whole batches of it."""

    def __iter__(self):
        order = [*super().__iter__()]
        return iter([order[i : i + BATCH] for i in range(0, self.n, BATCH)])


def unknown_orders():
    """Loaders with a generator, whose order comes from elsewhere."""
    from torch.utils import data as loading

    data, drawn = loading.TensorDataset(*make_data()), torch.Generator().manual_seed(7)
    own = {"dataset": data, "generator": drawn}
    yield (
        "torch's own numbers",
        loading.DataLoader(batch_size=BATCH, sampler=loading.RandomSampler(data), **own),
    )
    yield "by epoch", loading.DataLoader(batch_size=BATCH, sampler=ByEpoch(ROWS), **own)
    yield "in batches", loading.DataLoader(batch_sampler=Batched(ROWS), **own)
    yield (
        "by workers that persist",
        loading.DataLoader(
            batch_size=BATCH, shuffle=True, num_workers=1, persistent_workers=True, **own
        ),
    )
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return
    yield (
        "stateful, by torch's sampler",
        StatefulDataLoader(
            batch_size=BATCH, sampler=loading.RandomSampler(data, generator=drawn), **own
        ),
    )
    yield "stateful, by epoch", StatefulDataLoader(batch_size=BATCH, sampler=ByEpoch(ROWS), **own)


UNKNOWN = dict(unknown_orders())


@pytest.mark.long
@pytest.mark.parametrize("loader", UNKNOWN.values(), ids=UNKNOWN)
def test_an_order_that_would_be_another_is_refused_before_anything_is_trained(
    pair, tmp_path, loader
):
    run = deployed(pair)
    run.fit(loader, epochs=2, on_step=lambda step, _: ended(step == 7)).wait()
    run.save(tmp_path / "run")
    step = run.step
    run.close()
    again = deployed(pair, resume=tmp_path / "run")
    with pytest.raises(UserError, match=r"order of batches of this .* is not known again"):
        again.fit(loader, epochs=2, resume=True).wait()
    assert again.step == step
    again.close()


SCHEDULES = {
    "one": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.8),
    "chained": lambda made: torch.optim.lr_scheduler.ChainedScheduler(
        [
            torch.optim.lr_scheduler.ConstantLR(made, 0.5, 3),
            torch.optim.lr_scheduler.ExponentialLR(made, 0.8),
        ],
        optimizer=made,
    ),
    "one after the other": lambda made: torch.optim.lr_scheduler.SequentialLR(
        made,
        [
            torch.optim.lr_scheduler.LinearLR(made, 0.1, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingLR(made, 9),
        ],
        [4],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("again", "from_file"),
    [
        *product(["all made anew", "a new schedule"], [True, False]),
        ("same", False),
        ("none", False),
    ],
)
def test_a_fit_that_was_ended_goes_on_with_its_rates_and_moments(
    pair, tmp_path, schedule, again, from_file
):
    net, data = make_net(), make_data()

    def made_anew():
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        return {"optimizer": optimizer, "schedule": SCHEDULES[schedule](optimizer)}

    uninterrupted = deployed(pair, net)
    expected = uninterrupted.fit(data, epochs=3, **made_anew()).wait().losses
    uninterrupted.close()
    run, given = deployed(pair, net), made_anew()
    run.fit(data, epochs=3, on_step=lambda step, _: ended(step == 7), **given).wait()
    begun = run.history.losses
    if from_file:
        run.save(tmp_path / "run")
        run.close()
        run, given = deployed(pair, net, resume=tmp_path / "run"), made_anew()
    if again == "all made anew":
        given = made_anew()
    elif again == "a new schedule":
        given["optimizer"].param_groups[0].update(lr=0.1, initial_lr=0.1)
        given["schedule"] = SCHEDULES[schedule](given["optimizer"])
    elif again == "none":
        given = {}
    rest = run.fit(data, epochs=3, resume=True, **given).wait().losses
    assert (*begun, *rest) == expected
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_batches_that_are_made_in_the_same_memory_are_each_their_own(pair, accumulate):
    """As many readers do: the next batch overwrites the one before."""
    x, y = make_data()

    class Reader:
        def __iter__(self):
            rows, targets = torch.empty_like(x[:BATCH]), torch.empty_like(y[:BATCH])
            for i in range(0, ROWS, BATCH):
                yield rows.copy_(x[i : i + BATCH]), targets.copy_(y[i : i + BATCH])

    losses = []
    for data in (
        Reader(),
        [*((x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH))],
    ):
        run = deployed(pair)
        losses.append(run.fit(data, accumulate=accumulate).wait().losses)
        run.close()
    assert losses[0] == losses[1]


@pytest.mark.long
def test_a_fit_that_was_cancelled_goes_on_in_the_same_run(pair):
    options = {"epochs": 4, "optimizer": potluck.SGD(0.1)}
    uninterrupted = deployed(pair)
    expected = uninterrupted.fit(LOADERS["generator"](), **options).wait().losses
    uninterrupted.close()
    run, loader = deployed(pair), LOADERS["generator"]()
    holder = []
    holder.append(
        run.fit(loader, on_step=lambda step, _: step == 6 and holder[0].cancel(), **options)
    )
    with pytest.raises(CancelledError):
        holder[0].wait()
    run.fit(loader, resume=True, **options).wait()
    assert run.history.losses == expected
    run.close()


@pytest.mark.long
def test_a_run_saves_itself_and_goes_on_from_there_after_any_end(pair, tmp_path):
    options = {"epochs": 3, "optimizer": potluck.AdamW(1e-2)}
    uninterrupted = deployed(pair)
    expected = uninterrupted.fit(LOADERS["generator"](), **options).wait().losses
    uninterrupted.close()
    run, steps = deployed(pair), []

    def on_step(step, loss):
        steps.append(step)
        if step == 11:
            raise KeyError("the notebook ends")

    with pytest.raises(KeyError):
        run.fit(
            LOADERS["generator"](),
            on_step=on_step,
            save_to=tmp_path / "run",
            save_every=4,
            **options,
        ).wait()
    run.close()
    again = deployed(pair, resume=tmp_path / "run")
    assert again.step == 8
    rest = again.fit(LOADERS["generator"](), resume=True, **options).wait().losses
    assert rest == expected[8:]
    again.close()


def test_a_run_saves_itself_by_time(pair, tmp_path):
    run = deployed(pair)
    every = datetime.timedelta(microseconds=1)
    run.fit(make_data(), save_to=tmp_path / "run", save_every=every).wait()
    assert (tmp_path / "run").exists()
    run.close()


@pytest.mark.long
def test_the_state_that_is_gone_back_to_knows_its_place_too(tmp_path):
    with memory_home(2) as home:
        run = deployed(home, protect=3)
        options = {"epochs": 3, "optimizer": potluck.AdamW(1e-2)}

        def on_step(step, loss):
            if step == 8:
                memory_of(home).kill(B)
            if step == 10:
                run.save(tmp_path / "run", latest=False)

        expected = run.fit(LOADERS["generator"](), on_step=on_step, **options).wait().losses
        assert run.history.recoveries
        run.close()
    with memory_home(2) as home:
        again = deployed(home, resume=tmp_path / "run")
        rest = again.fit(LOADERS["generator"](), resume=True, **options).wait().losses
        assert rest == pytest.approx(expected[-len(rest) :], abs=1e-6)
        assert len(rest) in (6, 7, 8, 9, 10)


def test_an_order_that_nobody_knows_again_is_refused(pair, tmp_path):
    x, y = make_data()
    shuffled = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), BATCH, shuffle=True
    )
    run = deployed(pair)
    run.fit(shuffled, on_step=lambda step, _: ended(step == 2)).wait()
    with pytest.raises(UserError, match="order of batches of this DataLoader is not known"):
        run.fit(shuffled, resume=True)
    with pytest.raises(UserError, match="with another kind of loader"):
        run.fit(LOADERS["generator"](), resume=True)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("every", ["step", "epoch"])
def test_a_schedule_goes_on_where_the_saved_one_stood(pair, tmp_path, every):
    def options(net):
        made = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        rates = torch.optim.lr_scheduler.ExponentialLR(made, 0.7)
        return {"optimizer": made, "schedule": rates, "schedule_every": every, "epochs": 3}

    net = make_net()
    uninterrupted = deployed(pair, net)
    expected = uninterrupted.fit(make_data(), **options(net)).wait().losses
    uninterrupted.close()
    net = make_net()
    run = deployed(pair, net)
    run.fit(make_data(), on_step=lambda step, _: ended(step == 8), **options(net)).wait()
    run.save(tmp_path / "run")
    begun = run.history.losses
    run.close()
    net = make_net()
    again = deployed(pair, net, resume=tmp_path / "run")
    rest = again.fit(make_data(), resume=True, **options(net)).wait().losses
    assert (*begun, *rest) == expected
    again.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("every", ["epoch", "step"])
@pytest.mark.parametrize("protect", [5, 4, 2, 7])
def test_the_state_that_is_gone_back_to_knows_the_schedule_it_was_trained_by(
    pair, tmp_path, every, protect
):
    """Another `fit` counts its epochs anew, and the state may be of the one before."""
    net, epochs = make_net(), 2

    def options():
        made = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        rates = torch.optim.lr_scheduler.ExponentialLR(made, 0.7)
        return {"optimizer": made, "schedule": rates, "schedule_every": every}

    run = deployed(pair, net, protect=protect)
    expected = run.fit(make_data(), epochs=epochs, **options()).wait().losses
    task = run.fit(make_data(), epochs=epochs)
    at = run.save(tmp_path / "run", latest=False)
    expected += task.wait().losses
    run.close()
    again = deployed(pair, net, resume=tmp_path / "run")
    losses = again.fit(make_data(), epochs=epochs, resume=True, **options()).wait().losses
    if at < epochs * N_BATCHES:
        losses += again.fit(make_data(), epochs=epochs).wait().losses
    assert losses == expected[at:]
    again.close()


@pytest.mark.long
def test_a_rate_that_was_set_by_hand_is_saved(pair, tmp_path):
    net = make_net()
    run, made = deployed(pair, net), torch.optim.SGD(net.parameters(), 0.1)

    def on_epoch(epoch, history):
        made.param_groups[0]["lr"] = 0.01

    run.fit(make_data(), epochs=2, optimizer=made, on_epoch=on_epoch).wait()
    run.save(tmp_path / "run")
    run.close()
    again = deployed(pair, resume=tmp_path / "run")
    rest = again.fit(make_data()).wait().losses
    third = deployed(pair, resume=tmp_path / "run")
    assert third.fit(make_data(), optimizer=potluck.SGD(0.01)).wait().losses == rest
    for each in (again, third):
        each.close()


def test_a_schedule_is_neither_handed_over_nor_left_out_without_a_word(pair, tmp_path):
    run = deployed(pair)
    run.fit(make_data(), schedule=lambda step: 0.5**step).wait()
    run.hand_over = print  # a home whose devices outlive it
    with pytest.raises(UserError, match="which is your code and stays here"):
        run.detach(make_data())
    run.save(tmp_path / "run")
    run.close()
    again = deployed(pair, resume=tmp_path / "run")
    again.fit(make_data()).wait()
    assert any("had a schedule of its rates" in note for note in again.history.notes)
    again.close()


# --- scores ---------------------------------------------------------------------------------------


class Counted:
    """A metric that keeps its state, as those of torchmetrics."""

    def reset(self):
        self.right = self.seen = 0

    def update(self, outputs, labels):
        self.right += int((outputs.argmax(1) == labels).sum())
        self.seen += len(labels)

    def compute(self):
        return torch.tensor(self.right / self.seen)


def test_several_scores_are_taken_of_the_same_answers(pair):
    run, (x, y) = deployed(pair), make_data()
    run.fit((x, y), ema=0.5, optimizer=potluck.SGD(0.5)).wait()
    batches = [(x[:7], y[:7]), (x[7:], y[7:])]
    outputs = run(x)
    weights = torch.tensor([1.0, 3.0, 0.5])
    scores = {
        "accuracy": lambda outputs, y: (outputs.argmax(1) == y).float().mean(),
        "weighted": lambda outputs, y: (
            torch.nn.functional.cross_entropy(outputs, y, weights, reduction="sum"),
            weights[y].sum(),
        ),
        "counted": Counted(),
    }
    found = run.evaluate(batches, scores)
    assert found["accuracy"] == pytest.approx((outputs.argmax(1) == y).float().mean().item())
    assert found["counted"] == pytest.approx(found["accuracy"])
    expected = torch.nn.functional.cross_entropy(outputs, y, weights).item()
    assert found["weighted"] == pytest.approx(expected)
    assert run.evaluate(batches, scores["accuracy"]) == found["accuracy"]
    net = make_net().eval()
    net.load_state_dict(run.state_dict(ema=True))
    loss = torch.nn.functional.cross_entropy
    assert run.evaluate(batches, loss, ema=True) == pytest.approx(loss(net(x), y).item())
    assert run.evaluate(batches, loss) != pytest.approx(loss(net(x), y).item())
    with pytest.raises(UserError, match="a str cannot be"):
        run.evaluate(batches, "accuracy")
    run.close()


CROSS_ENTROPY = torch.nn.functional.cross_entropy
WEIGHTS = torch.tensor([1.0, 3.0, 0.5])
WEIGHTED = {
    "class weights": torch.nn.CrossEntropyLoss(weight=WEIGHTS),
    "an ignored class": torch.nn.CrossEntropyLoss(ignore_index=1, label_smoothing=0.2),
    "likelihoods": lambda o, y: torch.nn.functional.nll_loss(o.log_softmax(1), y, WEIGHTS),
    "a number": lambda o, y: CROSS_ENTROPY(o, y, WEIGHTS, ignore_index=2).item(),
    "without a gradient": lambda o, y: CROSS_ENTROPY(o, y, WEIGHTS).detach(),
    "no weights": CROSS_ENTROPY,
    "probabilities": lambda o, y: CROSS_ENTROPY(
        o, torch.nn.functional.one_hot(y, 3).float(), WEIGHTS
    ),
    "a sum": lambda o, y: (CROSS_ENTROPY(o, y, WEIGHTS, reduction="sum"), WEIGHTS[y].sum()),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("sizes", [(12,), (7, 5), (1, 2, 3, 6), (1,) * 12])
def test_a_weighted_mean_is_that_of_all_rows_whatever_the_batches(pair, sizes):
    run, (x, y) = deployed(pair), make_data()
    x, y = x[:12], torch.arange(12) % 3
    found = run.evaluate(zip(x.split(sizes), y.split(sizes), strict=True), WEIGHTED)
    outputs = run(x)
    for name, score in WEIGHTED.items():
        expected = score(outputs, y)
        expected = expected[0] / expected[1] if isinstance(expected, tuple) else expected
        assert found[name] == pytest.approx(float(expected), rel=1e-5), name
    run.close()


def test_what_was_frozen_or_thawed_since_it_was_saved_is_told_how_to_go_on(pair, tmp_path):
    run = deployed(pair)
    run.fit(make_data()).wait()
    run.save(tmp_path / "run")
    run.close()
    net = make_net()
    net[0].requires_grad_(False)
    with pytest.raises(UserError, match=r"other weights are trained.*run\.load_into\(\)"):
        deployed(pair, net, resume=tmp_path / "run")
