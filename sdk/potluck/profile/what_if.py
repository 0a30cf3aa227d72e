"""A device that nobody owns yet, in a profile: its numbers from the library, its times by roofline,
labelled estimated.

Where the operators of the model are known the estimate is per operator. Of a measured profile only
layers are known, and each is taken for one product of matrices: rougher, and the profile's notes
say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from potluck.errors import UserError
from potluck.graph.modelgraph import OperatorNode
from potluck.planning.scenario import free_name, joined, known
from potluck.profile import library
from potluck.profile.library import DEVICE_NUMBERS, DeviceSpec, Number
from potluck.profile.profiles import Measurements, Profile, can_train
from potluck.profile.roofline import estimate, layer_cost
from potluck.records import HOME, Device, Layer, LayerCost


def with_device(
    profile: Profile,
    kind: str | Path,
    name: str = "",
    *,
    like: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Profile:
    """`profile` with a device of the library; see `Profile.with_device`.

    Parameters
    ----------
    profile
        Of the home as it is.
    kind
        A device of the library, or a file.
    name
        What it is called; default: made from its kind.
    like
        Whom it is connected like; default: the device that is reached fastest.
    numbers
        What is known better than in the library.

    Raises
    ------
    UserError
        A number or device is not known.
    """
    names = [device.name for device in profile.devices]
    if not names:
        raise UserError("a home without devices has nothing to connect one to.")
    spec, notes = completed(library.load_device(kind), numbers or {})
    if name:
        if name in (*names, HOME):
            raise UserError(
                f"there is a {name!r} in this home already.", next_step="Choose another name."
            )
    else:
        name = free_name(spec.name, names)
    if like:
        known(like, names, "device")
    like = like or min(names, key=lambda one: _distance_s(profile, one))
    twin = next(
        (device for device in profile.devices if device.kind == spec.name and not numbers), None
    )
    device = replace(twin, name=name) if twin else spec.device(name)
    times = (
        "those of its like here"
        if twin
        else "estimated"
        if profile.graph
        else "roughly estimated from its layers"
    )
    note = f"{name} ({spec.title}) is imagined: connected like {like}, its times are {times}"
    modes = {"training": profile.training, "inference": profile.inference}
    if not can_train(device.backends):
        modes["training"] = None
    found = {
        mode: _joined_by(name, twin, spec, profile, item)
        for mode, item in modes.items()
        if item is not None
    }
    return replace(
        profile,
        devices=(*profile.devices, device),
        network=joined(profile.network, name, like),
        notes=(*profile.notes, note, *notes),
        home="",
        **found,  # type: ignore[arg-type]
    )


@lru_cache(maxsize=1)
def kinds() -> tuple[str, ...]:
    """Devices of the library that can be added by name alone: their memory is known."""
    known_bytes = {
        name: library.load_device(name).get("memory_bytes") for name in library.names("devices")
    }
    return tuple(name for name, nbytes in known_bytes.items() if nbytes is not None)


def _joined_by(
    name: str, twin: Device | None, spec: DeviceSpec, profile: Profile, item: Measurements
) -> Measurements:
    """`item` with one device more: as its twin, which may be unable to do this at all, or
    estimated.
    """
    if twin is not None and twin.name not in item.costs:
        return item
    return replace(
        item,
        costs={**item.costs, name: item.costs[twin.name] if twin else costs(spec, profile, item)},
    )


def completed(spec: DeviceSpec, numbers: Mapping[str, float]) -> tuple[DeviceSpec, list[str]]:
    """`spec` with the caller's numbers, then with what the library's homes assume of it.

    Notes say which and why.

    Parameters
    ----------
    spec
        Of the library.
    numbers
        What is known better.

    Raises
    ------
    UserError
        A number is not known by this name.
    """
    for field, value in numbers.items():
        if field not in DEVICE_NUMBERS:
            raise UserError(
                f"a device has no number {field!r}.",
                next_step=f"It has {', '.join(DEVICE_NUMBERS)}.",
            )
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UserError(f"{spec.name}: {field} must be a number, zero or more; got {value!r}.")
    own = {
        field: Number(value=value, basis="estimate", source="the caller")
        for field, value in numbers.items()
    }
    assumed = {
        field: number
        for field, number in library.assumed(spec.name).items()
        if field not in spec.numbers
    }
    notes = [
        f"{spec.name}: {field} is assumed to be {number.value:g} ({number.reason})"
        for field, number in assumed.items()
        if field not in own
    ]
    return replace(spec, numbers={**assumed, **spec.numbers, **own}), notes


def costs(spec: DeviceSpec, profile: Profile, measured: Measurements) -> tuple[LayerCost, ...]:
    """The estimated times of every layer at the batch sizes that the others have.

    Parameters
    ----------
    spec
        Of the newcomer.
    profile
        Gives the operators of each layer.
    measured
        Gives the rows.
    """
    rows = next((cost.rows for table in measured.costs.values() for cost in table), (1,))
    if profile.graph is not None:
        return estimate(spec, profile.graph, rows, profile.bounds)
    widths = [measured.input_bytes, *(layer.output_bytes for layer in measured.layers)]
    return tuple(
        _of_layer(spec, layer, before, rows)
        for before, layer in zip(widths, measured.layers, strict=False)
    )


def _of_layer(spec: DeviceSpec, layer: Layer, input_bytes: int, rows: Sequence[int]) -> LayerCost:
    node = OperatorNode(
        name=layer.name,
        kind="matmul",
        forward_flop=int(layer.forward_flop),
        backward_flop=int(layer.backward_flop),
        parameter_bytes=layer.parameter_bytes,
        frozen_bytes=layer.frozen_bytes,
        traffic_bytes=input_bytes + layer.output_bytes + layer.activation_bytes,
    )
    # training has no operation backward where every weight so far is frozen
    still = (layer.name,) if layer.frozen_bytes and not layer.backward_flop else ()
    return layer_cost(spec, (node,), rows, still=still)


def _distance_s(profile: Profile, name: str) -> float:
    """Seconds for a megabyte from the notebook.

    The machine that it runs on is no example of a link.
    """
    if (HOME, name) not in profile.network.paths:
        return 0.0
    seconds = profile.network.latency(HOME, name) + 1e6 / profile.network.bandwidth(HOME, name)
    return seconds if profile.network.path(HOME, name).media else float("inf")
