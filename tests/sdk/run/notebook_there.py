"""A notebook somewhere in `internet.Internet`: trains a small model on two devices and on itself,
and says how far apart the results are. Run as `python -m tests.sdk.run.notebook_there STATE EPOCHS
NAME=ADDRESS=KEY ...`; each line that it prints is JSON.
"""

import copy
import json
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tests.sdk.run.conftest import make_data, make_model, make_plan, train_alone

import potluck
from potluck.errors import PotluckError

ROWS, BATCH = 24, 12
UNDER_WAY = 5  # steps


def main(state: str, epochs: str, *peers: str) -> None:
    torch.set_num_threads(1)
    with potluck.Home(state=Path(state)) as home:
        for name, address, key in (peer.split("=", 2) for peer in peers):
            home.trust(address, key, name=name)
        tell(devices={member.name: member.status for member in home.devices.values()})
        names = tuple(peer.partition("=")[0] for peer in peers)
        home.devices.need(names)
        train(home, names, int(epochs))


def train(home: potluck.Home, names: tuple[str, ...], epochs: int) -> None:
    net, model = make_model("mlp")
    x, y = make_data("mlp", ROWS)
    plan = make_plan(model, *(((name,), (4,)) for name in names), micro_batch=4, n_micro_batches=3)
    sgd = potluck.SGD(0.05)
    run = home.deploy(plan, model, optimizer=sgd, protect=1).wait()
    handle, under_way = run.fit((x, y), epochs=epochs), threading.Event()
    handle.listen(lambda done_frac, text: run.step >= UNDER_WAY and under_way.set())
    handle.on_done(lambda _: under_way.set())
    under_way.wait()
    tell(under_way=run.step)
    history = handle.wait()
    alone = copy.deepcopy(net)
    losses = train_alone(
        alone,
        x,
        y,
        batch=BATCH,
        micro_batch=4,
        epochs=epochs,
        make_optimizer=lambda p: torch.optim.SGD(p, 0.05),
    )
    learned = run.state_dict()
    tell(
        steps=run.step,
        recoveries=len(history.recoveries),
        losses=max(abs(a - b) for a, b in zip(history.losses, losses, strict=True)),
        weights=max(
            (learned[name] - tensor).abs().max().item()
            for name, tensor in alone.state_dict().items()
        ),
    )
    with suppress(PotluckError):
        run.close()


def tell(**facts: Any) -> None:
    """One line for the test."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
