"""What a value takes from one device to another of the same machine in a run: from the end of the
task that makes it to the start of the next one, through both agents and both workers.
"""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from potluck.errors import ProtocolError
from potluck.graph import Model
from potluck.profile.shared_machines import MeasuredHop
from potluck.records import Plan, Stage
from potluck.run.engine import RunEngine
from potluck.run.optimizers import SGD
from potluck.run.weight_update import Update
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members

# Tasks of some milliseconds: between shorter ones cores stay awake and keep the agents' code.
N_LAYERS, WIDTH = 8, 512
ROWS = 64
N_WARM_UPS, N_STEPS = 3, 12
BYTES_PER_VALUE = 4


def hop_between(link: SessionLink, members: Members, source: str, target: str) -> MeasuredHop:
    """The hop between these devices, as it is in a training of two stages, forth and back.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    source, target
        Names of devices of one machine: their times are of one clock.

    Raises
    ------
    PotluckError
        They cannot run it.
    ProtocolError
        They do not tell what they did when.
    """
    import torch

    with torch.random.fork_rng(devices=()):  # weights are drawn: the user's numbers go on as before
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(N_LAYERS)]
    batch = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
    model = Model.from_torch(
        torch.nn.Sequential(*layers),
        batch[0],
        loss=torch.nn.functional.mse_loss,
        example_targets=batch[1],
        name="hops",
    )
    n_layers, half = len(model.layers(True)), N_LAYERS // 2
    stages = (
        Stage(start=0, stop=half, devices=(source,), shares=(ROWS,)),
        Stage(start=half, stop=n_layers, devices=(target,), shares=(ROWS,)),
    )
    plan = Plan(planner="profile", model=model.name, stages=stages, micro_batch=ROWS, training=True)
    engine = RunEngine(link, members, model, plan, optimizer=Update(optimizer=SGD(0.0)), seed=0)
    try:
        engine.state.push(model.state())
        for _ in range(N_WARM_UPS + N_STEPS):
            engine.submit(batch)
            engine.collect()
        steps = [*engine.kept][N_WARM_UPS:]
    finally:
        engine.group.drop()
    seconds = [hop_s for step in steps for hop_s in _hops_s(*step)]
    if not seconds:
        raise ProtocolError("what it did when is not told.", device=target)
    return MeasuredHop(seconds=median(seconds), nbytes=ROWS * WIDTH * BYTES_PER_VALUE)


def _hops_s(result: ExecutionResult, compiled: Compiled) -> Iterator[float]:
    tasks = sorted(
        (start_s, stop_s, device)
        for device, timeline in result.timelines.items()
        for index, start_s, stop_s in timeline.rows
        if compiled.programs[device].instructions[index].op in ("run", "backward")
    )
    for (_, stop_s, device), (start_s, _, then) in pairwise(tasks):
        if then != device:
            yield start_s - stop_s
