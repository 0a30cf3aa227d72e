"""Measure a model on a home: layers on every device, links between all, memory and power as the
devices state them.

Devices of one machine share its processor, so they are measured one after another; different
machines in parallel.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from potluck.errors import FileError, ModelError, OutOfMemory, PlanError, UserError
from potluck.graph.backends import WEIGHT_COPIES, kind_on
from potluck.handle import Handle, Task
from potluck.profile.assumed_power import assumed_watts
from potluck.profile.call_cost import NO_CALL
from potluck.profile.device_bench import MAX_REPEATS, Bench, possible_rows
from potluck.profile.home_network import HomeNetwork
from potluck.profile.layer_times_store import LayerTimesStore, about_of
from potluck.profile.left_out import leave_out
from potluck.profile.measure_network import measure_network, pairs_to_probe
from potluck.profile.measure_power import NotMeasured, has_meter, measure_watts, shared
from potluck.profile.power_model import Watts
from potluck.profile.profiles import Measurements, Profile, can_train
from potluck.profile.shared_machines import (
    Costs,
    HopBetween,
    SharedMachine,
    at_work,
    shared_machines,
)
from potluck.records import Device, LayerCost
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Member, Members

# What a worker takes beside tensors: kernels and buffers that libraries make at first use. Up to
# 1.5 MiB in workers that have measured the model before, 6.3 MiB in new ones (x86-64, torch 2.13).
FLOOR_BYTES = 8 * 2**20


def check_measuring(rows: Any, repeats: Any, devices: Any, watts: Any = None) -> None:
    """Refuse what are not batch sizes, a number of repeats, and names (or None: all).

    Parameters
    ----------
    rows
        Batch sizes.
    repeats
        How often each time is taken.
    devices
        Names; None for all.
    watts
        Whether power is measured; None for where it is not known.

    Raises
    ------
    UserError
        One of them is not what it should be.
    """
    if (
        not isinstance(rows, Sequence)
        or not rows
        or not all(isinstance(n, int) and n > 0 for n in rows)
    ):
        raise UserError(f"rows are batch sizes to measure, such as (1, 4, 16), got {rows!r}.")
    if not isinstance(repeats, int) or not 1 <= repeats <= MAX_REPEATS:
        raise UserError(f"a layer is measured 1 to {MAX_REPEATS} times, got repeats={repeats!r}.")
    if isinstance(devices, str):
        raise UserError(
            f"devices are a list of names, got {devices!r}.", next_step=f"devices=[{devices!r}]"
        )
    if watts is not None and not isinstance(watts, bool):
        raise UserError(
            f"watts are measured or not, True or False, got {watts!r}.",
            next_step="Watts that you know are the device's to state: potluck agent start --power.",
        )


def profile(
    link: SessionLink,
    members: Members,
    model: Any,
    task: Task,
    *,
    train: bool,
    rows: Sequence[int],
    repeats: int,
    store: LayerTimesStore | None,
    save: LayerTimesStore | None,
    devices: Iterable[str] | None = None,
    known: HomeNetwork | None = None,
    watts: bool | None = False,
    measured_before: dict[str, Watts] | None = None,
    hop_between: HopBetween | None = None,
) -> Profile:
    """The profile of `model` on these devices, by default on every ready one.

    Times in `store` are not measured again.

    A device with too little memory for a layer, or that cannot compute any, is left out, with a
    note and a warning, and plans will say so (`excluded`). It is an error where all are. One that
    has no torch is not measured for training.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    model
        What is measured.
    task
        Where progress is reported.
    train
        Measure training, too.
    rows
        Batch sizes.
    repeats
        How often each time is taken.
    store
        Where known times are read; None reads none.
    save
        Where new times are kept; None keeps none.
    devices
        Names; default: all that are ready.
    known
        The network that the owner declared.
    watts, measured_before
        Whether power is measured where a meter is (None: unless it was), and what was, by key.
    hop_between
        Runs something on two devices of a machine, for what a value takes between tasks.
    """
    names = members.need(devices)
    modes = [True, False] if train and model.trains else [False]
    n_layers = sum(len(model.layers(mode)) for mode in modes)
    bench = Bench(link, members, task, n_layers * len(names) + len(pairs_to_probe(tuple(names))))
    notes: list[str] = []

    def measure(device: str) -> Costs:
        members.need([device])  # it may have gone since
        if _memory_bytes(members[device].capability) <= 0:
            raise OutOfMemory("none of what its owner allows is left there.", device=device)
        possible = [
            mode
            for mode in modes
            if not mode or can_train(members[device].capability.get("backends", ()))
        ]
        return {
            mode: _costs(bench, model, device, members, mode, rows, repeats, store, save, notes)
            for mode in possible
        }

    found, excluded = _of_all_that_can(names, members, measure, notes)
    capabilities = {name: members[name].capability for name in found}
    connected = measure_network(bench, link, task, capabilities, known)
    for note in connected.contradictions:
        warnings.warn(note, stacklevel=2)
    notes += connected.notes
    machines = shared_machines(bench, model, found, capabilities, hop_between)
    network = at_work(connected.network, machines.values())
    if watts is not False:
        powers = measured_before if measured_before is not None else {}
        again = bool(watts)
        notes += _measure_watts(link, members, task, model, found, powers, again=again)
    members.need(found)  # one may have gone since it was measured: then it says nothing of itself
    copies = weight_copies(model, found, members)
    measured = {
        mode: measurements_of(
            model,
            mode,
            {name: costs[mode] for name, costs in found.items() if mode in costs},
            copies,
        )
        for mode in modes
    }
    return Profile(
        model=name_of(model),
        signature=model.signature,
        devices=tuple(
            _powered(device, members[device.name], measured_before)
            for device in _placed(bench, found, capabilities, machines)
        ),
        network=network,
        training=measured.get(True),
        inference=measured.get(False),
        notes=(*notes, *model.notes(train=True in modes)),
        untrained=model.untrained,
        excluded=excluded,
        document=replace(connected.document, beside=network),
    )


def _of_all_that_can(
    names: Sequence[str], members: Members, measure: Callable[[str], Costs], notes: list[str]
) -> tuple[dict[str, Costs], dict[str, str]]:
    """{name: measure(name)} of those that can, and why the others cannot.

    Raised where nobody can.
    """
    unfit: dict[str, OutOfMemory | ModelError | PlanError] = {}

    def attempt(device: str) -> Costs:
        try:
            return measure(device)
        except (OutOfMemory, ModelError, PlanError) as error:
            unfit[device] = error
            return {}

    found = {
        name: costs
        for name, costs in by_host(names, lambda name: _host(members, name), attempt).items()
        if costs
    }
    if not found:
        raise next(iter(unfit.values()))
    return found, {name: leave_out(name, error, notes) for name, error in unfit.items()}


def _measure_watts(
    link: SessionLink,
    members: Members,
    task: Task,
    model: Any,
    found: Mapping[str, Costs],
    powers: dict[str, Watts],
    *,
    again: bool,
) -> list[str]:
    """Measure the power of those that have a meter into `powers`, by their keys; returns why some
    could not be measured.
    """
    metered = [
        name
        for name in found
        if has_meter(members[name].capability) and (again or members[name].key not in powers)
    ]
    hosts = [_host(members, name) for name in found]
    failed: list[str] = []

    def measure(device: str) -> None:
        task.update(task.progress[0], f"{device}: power")
        try:
            watts = measure_watts(link, members, task, model, device, found[device])
        except NotMeasured as error:
            failed.append(f"the power of {device} is assumed, not measured: {error}.")
        else:
            n_devices = hosts.count(_host(members, device))
            powers[members[device].key] = shared(watts, n_devices)

    by_host(metered, lambda name: _host(members, name), measure)
    return failed


def _placed(
    bench: Bench,
    found: Mapping[str, Costs],
    capabilities: Mapping[str, Mapping[str, Any]],
    machines: Mapping[str, SharedMachine],
) -> Iterator[Device]:
    """Every device, as one of the machine that it shares where it does."""
    for name, capability in capabilities.items():
        device = device_of(name, capability, bench.call_s(name, True in found[name]))
        yield machines[name].device(device) if name in machines else device


def _powered(device: Device, member: Member, powers: Mapping[str, Watts] | None) -> Device:
    """The device with its power as it was measured, where it was."""
    watts = (powers or {}).get(member.key)
    return device if watts is None or not has_meter(member.capability) else watts.of(device)


def _costs(
    bench: Bench,
    model: Any,
    device: str,
    members: Members,
    train: bool,
    rows: Sequence[int],
    repeats: int,
    store: LayerTimesStore | None,
    save: LayerTimesStore | None,
    notes: list[str],
) -> tuple[LayerCost, ...]:
    layers, backends = model.layers(train), members[device].capability.get("backends", ())
    n_layers, needed = len(layers), possible_rows(rows, layers, train)
    # made for one session: what it was last time says nothing
    if members[device].capability.get("emulated"):
        store = save = None
    about = about_of(members[device].key, members[device].capability)
    call_signature = f"a call of a piece: {kind_on(model, device, backends, train=train)}"
    if store is not None:
        try:
            kept = store.load(model.signature, about, train=train, rows=needed, n_layers=n_layers)
            call = store.load(call_signature, about, train=train, rows=(1,), n_layers=1)
        except FileError as error:
            warnings.warn(str(error), stacklevel=2)
            notes.append(str(error))
        else:
            if kept is not None and call is not None:
                bench.calls[device, train] = call[0]
                for index in range(n_layers):
                    bench.done(f"{device}: layer {index} known")
                return kept
    costs = tuple(
        bench.layer(device, model, index, train, needed, repeats) for index in range(n_layers)
    )
    if n_beside := bench.beside.get(device):  # slower than it is: true for now, and not for later
        notes.append(
            f"{device} was measured beside the runs of {n_beside} other notebook(s), as fast as "
            "they leave it; profile it again when they are over."
        )
    elif save is not None:
        save.save(model.signature, about, costs, train=train)
        save.save(call_signature, about, (bench.calls.get((device, train), NO_CALL),), train=train)
    return costs


def by_host(
    names: Iterable[str], host: Callable[[str], str], work: Callable[[str], Any]
) -> dict[str, Any]:
    """{name: work(name)}: one host's devices one after another, hosts in parallel.

    The first error is raised.

    Parameters
    ----------
    names
        Of devices.
    host
        Called with a name: its machine.
    work
        Called with a name, in a thread of its machine.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(host(name), []).append(name)
    with ThreadPoolExecutor(max(len(groups), 1), "potluck profile") as pool:
        parts = pool.map(lambda group: {name: work(name) for name in group}, groups.values())
        found = {name: item for part in parts for name, item in part.items()}
    return {name: found[name] for group in groups.values() for name in group}


def device_of(name: str, capability: Mapping[str, Any], call_s: float = 0.0) -> Device:
    """The device as planners see it, from its capability statement.

    Parameters
    ----------
    name
        Of the device.
    capability
        Its capability statement.
    call_s
        What a call of a piece takes, beside its layers and what any instruction takes.
    """
    device = Device(
        name=name,
        memory_bytes=_memory_bytes(capability),
        overhead_s=float(capability.get("overhead_s") or 0.0) + call_s,
        copy_bytes_per_s=float(capability.get("copy_bytes_per_s") or 4e9),
        floor_bytes=FLOOR_BYTES,
        host=str(capability.get("host") or ""),
        kind=str(capability.get("platform") or ""),
        backends=tuple(capability.get("backends") or ()),
    )
    return assumed_watts(capability).of(device)


def _memory_bytes(capability: Mapping[str, Any]) -> int:
    """For tensors, of what other notebooks leave."""
    return int(capability.get("available_bytes", capability["memory_bytes"]))


def need_model(model: Any, what: str) -> None:
    """Refuse what is no model of ours, such as a torch module.

    Raises
    ------
    UserError
        It is none.
    """
    if not hasattr(model, "signature"):
        raise UserError(
            f"a potluck.Model is {what}, got {type(model).__name__}.",
            next_step="Make one: potluck.Model.from_torch(net, example), or .from_onnx(path).",
        )


def need_profile(profile: Any) -> None:
    """See that it is a profile, or one that is being made, or none.

    Parameters
    ----------
    profile
        What a user gave.

    Raises
    ------
    UserError
        It is something else.
    """
    if profile is not None and not isinstance(profile, Handle | Profile):
        raise UserError(f"profile is one of home.profile(model), got {type(profile).__name__}.")


def name_of(model: Any) -> str:
    """What plans call the model."""
    return str(getattr(model, "name", "") or f"model-{model.signature[:8]}")


def weight_copies(model: Any, names: Iterable[str], members: Mapping[str, Member]) -> int:
    """How often one of these devices holds its weights at most, for inference.

    Parameters
    ----------
    model
        What is run.
    names
        Of devices.
    members
        Their capabilities.
    """
    backends = {name: members[name].capability.get("backends", ()) for name in names}
    kinds = {kind_on(model, name, has, train=False) for name, has in backends.items()}
    return max((WEIGHT_COPIES[kind] for kind in kinds), default=1)


def measurements_of(
    model: Any, train: bool, costs: Mapping[str, tuple[LayerCost, ...]], weight_copies: int = 1
) -> Measurements:
    """These costs beside the sizes of the model in that mode.

    Parameters
    ----------
    model
        What was measured.
    train
        For training.
    costs
        Per device, one for each layer.
    weight_copies
        How often a device holds its weights.
    """
    ports, inputs = model.inputs(train), model.inputs(False)
    n_layers = len(model.layers(train))
    segment, _ = model.segment(n_layers - 1, n_layers, train=train)
    return Measurements(
        layers=tuple(model.layers(train)),
        costs=dict(costs),
        input_bytes=sum(port.row_bytes for port in inputs),
        target_bytes=sum(port.row_bytes for port in ports[len(inputs) :]),
        result_bytes=0 if train else sum(tensor.row_bytes for tensor in segment.outputs),
        weight_copies=weight_copies,
    )


def _host(members: Members, name: str) -> str:
    capability = members[name].capability
    return str(capability.get("host") or name)
