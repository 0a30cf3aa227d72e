"""Small models for the tests of runs, plans for them, and the same training on one machine."""

import threading

import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.records import Plan, Stage
from potluck.schedule.policies import warm_ups_of_rows
from potluck.schedule.stage_graph import chain

torch = pytest.importorskip("torch")


def make_net(kind: str):
    torch.manual_seed(0)
    if kind == "mlp":
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.ReLU(),
            torch.nn.Linear(16, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 4),
        )
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 4),
    )


def make_data(kind: str, rows: int):
    torch.manual_seed(1)
    x = torch.randn(rows, 8) if kind == "mlp" else torch.randn(rows, 1, 8, 8)
    return x, torch.randint(0, 4, (rows,))


def make_model(kind: str):
    net = make_net(kind)
    x, y = make_data(kind, 6)
    return net, potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )


def make_plan(model, *stages, micro_batch, n_micro_batches=1, training=True, bounds=None):
    """A plan from rows (devices, shares); layers are shared evenly over the stages, or as said.

    Shares of more or fewer rows than a micro-batch are those of a stage with its own size.
    """
    n_layers = len(model.layers(training))
    bounds = bounds or [round(i * n_layers / len(stages)) for i in range(len(stages) + 1)]
    rows = [sum(shares) for _, shares in stages]
    counts = [max(1, micro_batch * n_micro_batches // n) for n in rows]
    depths = warm_ups_of_rows(rows, counts, chain(len(stages)))
    return Plan(
        planner="by hand",
        model="test",
        stages=tuple(
            Stage(
                start=bounds[i],
                stop=bounds[i + 1],
                devices=devices,
                shares=shares,
                warm_up=depths[i],
                micro_batch=rows[i] if rows[i] != micro_batch else None,
            )
            for i, (devices, shares) in enumerate(stages)
        ),
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        training=training,
    )


def more_steps(run, handle, n):
    """Wait until a training that goes on has taken more than so many further steps, or has ended:
    without a loop, which would take the time of the devices in memory.
    """
    last, reached = run.step + n, threading.Event()
    handle.listen(lambda done_frac, text: run.step > last and reached.set())
    handle.on_done(lambda _: reached.set())
    assert reached.wait(TIMEOUT_S)


def train_alone(net, x, y, *, batch, micro_batch, epochs, make_optimizer):
    """The one-machine reference: the same micro-batches in the same order.

    Returns the loss of every step.

    `x`: a tensor, or a tuple of them.
    """
    optimizer, inputs = make_optimizer(net.parameters()), x if isinstance(x, tuple) else (x,)
    losses = []
    for _ in range(epochs):
        for start in range(0, len(y), batch):
            stop, total = min(start + batch, len(y)), 0.0
            for first in range(start, stop, micro_batch):
                part = slice(first, min(first + micro_batch, stop))
                loss, rows = (
                    torch.nn.functional.cross_entropy(net(*(t[part] for t in inputs)), y[part]),
                    len(y[part]),
                )
                (loss * (rows / (stop - start))).backward()
                total += loss.item() * rows
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total / (stop - start))
    return losses


def train_by_stages(net, model, plan, batches, make_optimizer):
    """One machine on which every stage of the plan takes its own micro-batches; net is a sequence.

    A stage goes forward over all of them, then backward over all of them in the same order, so that
    gradients are added up in that order. Returns the loss of every step.
    """
    stages = [[] for _ in plan.stages]
    names = [model.state_names(s.start, s.stop, train=True) for s in plan.stages]
    p = 0
    for name, module in net.named_children():
        own = {f"{name}.{key}" for key in module.state_dict()}
        p = next((q for q, held in enumerate(names) if own & set(held)), p)
        stages[p].append(module)
    assert all(stages), "a stage without a module"
    nets = [torch.nn.Sequential(*modules) for modules in stages]
    optimizer, losses = make_optimizer(net.parameters()), []
    for x, y in batches:
        kept, value = [], x
        total = 0.0
        for part_net, stage in zip(nets, plan.stages, strict=True):
            taken = [
                t.detach().requires_grad_(t.is_floating_point()) for t in value.split(stage.rows)
            ]
            made = [part_net(t) for t in taken]
            kept.append((taken, made))
            value = torch.cat([t.detach() for t in made])
        for m, target in enumerate(y.split(plan.stages[-1].rows)):
            made = kept[-1][1]
            loss = torch.nn.functional.cross_entropy(made[m], target)
            total += loss.item() * len(target)
            made[m] = loss * (len(target) / len(y))
        gradient = None
        for stage, (taken, made) in zip(reversed(plan.stages), reversed(kept), strict=True):
            parts = [None] * len(made) if gradient is None else gradient.split(stage.rows)
            for t, part in zip(made, parts, strict=True):
                t.backward(part)
            gradient = torch.cat([t.grad for t in taken]) if taken[0].requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / len(y))
    return losses
