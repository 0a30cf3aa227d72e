"""The profile of a lab: costs of the devices that are played, on the lab's network, after a check
that they can be.

What is really measured: how fast this machine does each layer (once, on one agent, for the check),
and how long a small message takes on each path beyond its bytes.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from potluck.graph.modelgraph import still_nodes
from potluck.handle import Task
from potluck.lab.emulation import Emulation, LayerWork
from potluck.profile.device_bench import Bench
from potluck.profile.home_network import HomeNetwork
from potluck.profile.measure import device_of, measurements_of, name_of, weight_copies
from potluck.profile.profiles import Measurements, Profile, can_train
from potluck.profile.roofline import layer_cost
from potluck.records import HOME, Device, LayerCost, Network
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members

# A machine that does something else for a moment can play a home all the same: a browser that opens
# a page takes some seconds.
MORE_LOOKS = 6
PAUSE_S = 0.5


def profile(
    link: SessionLink,
    members: Members,
    model: Any,
    task: Task,
    emulation: Emulation,
    *,
    train: bool,
    rows: Sequence[int],
    repeats: int,
    devices: Iterable[str] | None = None,
    document: HomeNetwork | None = None,
) -> Profile:
    """The profile of `model` on these devices of this lab, by default on all that are ready, over
    the network of `document`, or else that which the lab plays.

    Raises
    ------
    UserError
        Where this machine is too slow for them, with the time scale that would do.
    """
    names = members.need(devices)
    modes = [True, False] if train and model.trains else [False]
    pairs = [
        (source, target)
        for source in (*names, HOME)
        for target in (*names, HOME)
        if source != target
    ]
    bench = Bench(link, members, task, sum(len(model.layers(mode)) for mode in modes) + len(pairs))
    measured: dict[bool, Measurements] = {}
    works: dict[bool, LayerWork] = {}
    for mode in modes:
        costs = _played_costs(emulation, members, model, names, mode, rows)
        if costs:
            works[mode] = LayerWork(
                layers=[layer.name for layer in model.layers(mode)],
                real=_really(bench, model, next(iter(costs)), mode, rows, repeats),
                played=costs,
            )
        measured[mode] = measurements_of(model, mode, costs, weight_copies(model, names, members))
    check_speed(
        emulation,
        works,
        lambda mode, work: _really(bench, model, next(iter(work.played)), mode, rows, repeats),
    )
    if document is None:
        latencies_s = {
            pair: bench.latency_s(*pair, emulation.network.bandwidth(*pair)) for pair in pairs
        }
        network = _late(emulation.network, latencies_s)
    else:
        network = document.beside or document.records
    return Profile(
        model=name_of(model),
        signature=model.signature,
        devices=tuple(_device(emulation, name, members[name].capability) for name in names),
        network=network,
        document=document,
        training=measured.get(True),
        inference=measured.get(False),
        notes=(
            f"{emulation.home.name}, {emulation.time_scale:g} times slower; layer times are "
            "estimates",
            *model.notes(train=True in modes),
        ),
        untrained=model.untrained,
    )


def _played_costs(
    emulation: Emulation,
    members: Members,
    model: Any,
    names: Iterable[str],
    train: bool,
    rows: Sequence[int],
) -> dict[str, tuple[LayerCost, ...]]:
    """What the devices that are played take for each layer, by device; in training, those that can
    train.
    """
    operators = model.operators(train)
    still = still_nodes([node for nodes in operators for node in nodes])
    return {
        name: emulation.slowed(
            tuple(
                layer_cost(emulation.home.specs[name], nodes, rows, train=train, still=still)
                for nodes in operators
            )
        )
        for name in names
        if not train or can_train(members[name].capability.get("backends", ()))
    }


def check_speed(
    emulation: Emulation,
    works: Mapping[bool, LayerWork],
    look: Callable[[bool, LayerWork], Sequence[LayerCost]],
) -> None:
    """Refuse where this machine is too slow for `works` (of training, of requests), however often
    one looks.

    Parameters
    ----------
    emulation
        The home to be played.
    works
        As first measured.
    look
        Measures the layers of one of them again.

    Raises
    ------
    UserError
        With the time scale that would do.
    """
    cores = os.cpu_count() or 1
    for _ in range(MORE_LOOKS):
        if emulation.fits([*works.values()], cores):
            return
        time.sleep(PAUSE_S)
        works = {mode: work.looked_at_again(look(mode, work)) for mode, work in works.items()}
    emulation.check_fit([*works.values()], cores)


def _really(
    bench: Bench, model: Any, device: str, train: bool, rows: Sequence[int], repeats: int
) -> tuple[LayerCost, ...]:
    """How long this machine takes for each layer."""
    return tuple(
        bench.layer(device, model, index, train, rows, repeats)
        for index in range(len(model.layers(train)))
    )


def _device(emulation: Emulation, name: str, capability: Mapping[str, Any]) -> Device:
    """The device that is played; what an instruction costs beside its work, and a worker beside
    tensors, is real.
    """
    real = device_of(name, capability)
    return replace(
        emulation.device(name),
        memory_bytes=real.memory_bytes,
        overhead_s=real.overhead_s,
        floor_bytes=real.floor_bytes,
        host=real.host,
        backends=real.backends,
    )


def _late(network: Network, latencies_s: Mapping[tuple[str, str], float]) -> Network:
    """The network with what was measured: messages take their time beside that of their bytes."""
    paths = {
        pair: replace(path, latency_s=max(path.latency_s, latencies_s.get(pair, 0.0)))
        for pair, path in network.paths.items()
    }
    return Network(media=network.media, paths=paths)
