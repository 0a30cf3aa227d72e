"""A profile as JSON: what plans and predictions are made of.

The operators behind the layers and the network's document, which only what-ifs and corrections
need, stay behind.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from potluck.documents import holds, read_json
from potluck.errors import FileError, PotluckError
from potluck.profile.profiles import Measurements, Profile
from potluck.records import Device, Edge, Layer, LayerCost, Medium, Network, Path, SharedWeight

FORMAT = "potluck-profile-1"


def dumps(profile: Profile) -> str:
    """The text of a profile."""
    return json.dumps(
        {
            "format": FORMAT,
            "model": profile.model,
            "signature": profile.signature,
            "devices": [asdict(device) for device in profile.devices],
            "media": [asdict(medium) for medium in profile.network.media],
            "paths": [[*pair, asdict(path)] for pair, path in profile.network.paths.items()],
            "training": _plain(profile.training),
            "inference": _plain(profile.inference),
            "notes": profile.notes,
            "home": profile.home,
            "untrained": profile.untrained,
            "excluded": dict(profile.excluded),
        }
    )


def loads(text: str | bytes, file: str = "the profile") -> Profile:
    """The profile of this text.

    Parameters
    ----------
    text
        Of `dumps`.
    file
        Where it is from, for errors.

    Raises
    ------
    FileError
        It is no profile of this version, or does not hold.
    """
    return read(read_json(text, file), file)


def read(document: Any, file: str) -> Profile:
    """The profile of a document.

    Parameters
    ----------
    document
        Of the text that `dumps` gives.
    file
        Where it is from, for errors.

    Raises
    ------
    FileError
        As for `loads`.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileError(f"{file} is no profile of this version.", path=file)
    try:
        profile = Profile(
            model=document["model"],
            signature=document["signature"],
            devices=tuple(
                Device(**{**row, "backends": tuple(row["backends"])}) for row in document["devices"]
            ),
            network=Network(
                media=tuple(Medium(**row) for row in document["media"]),
                paths={(a, b): _path(row) for a, b, row in document["paths"]},
            ),
            training=_measurements(document["training"]),
            inference=_measurements(document["inference"]),
            notes=tuple(document["notes"]),
            home=document["home"],
            untrained=document["untrained"],
            excluded=document["excluded"],
        )
        _check(profile)
        return profile
    except (KeyError, TypeError, ValueError, AttributeError, PotluckError) as error:
        raise FileError(f"{file} does not hold: {error}.", path=file) from error


def _check(profile: Profile) -> None:
    """Whether every field has a value of its type."""
    parts: list[tuple[str, Any, Any]] = [
        ("model", profile.model, str),
        ("signature", profile.signature, str),
        ("home", profile.home, str),
        ("untrained", profile.untrained, str),
        ("notes", profile.notes, tuple[str, ...]),
        ("excluded", profile.excluded, Mapping[str, str]),
        ("devices", profile.devices, tuple[Device, ...]),
        ("media", profile.network.media, tuple[Medium, ...]),
        ("paths", profile.network.paths, Mapping[tuple[str, str], Path]),
        ("training", profile.training, Measurements | None),
        ("inference", profile.inference, Measurements | None),
    ]
    for name, value, kind in parts:
        if not holds(value, kind):
            raise ValueError(f"{name} has a value of another type or size than it should")
    if not profile.devices:
        raise ValueError("there are no devices")
    known = {device.name for device in profile.devices}
    for measured in (profile.training, profile.inference):
        if measured is not None and not set(measured.costs) <= known:
            raise ValueError("there are costs of devices that are not there")


def _plain(measured: Measurements | None) -> dict[str, Any] | None:
    return None if measured is None else asdict(measured)


def _path(row: Mapping[str, Any]) -> Path:
    return Path(**{**row, "media": tuple((name, times) for name, times in row["media"])})


def _measurements(row: Mapping[str, Any] | None) -> Measurements | None:
    if row is None:
        return None
    return Measurements(
        **{
            **row,
            "layers": tuple(_layer(layer) for layer in row["layers"]),
            "costs": {
                name: tuple(_cost(cost) for cost in costs) for name, costs in row["costs"].items()
            },
        }
    )


def _layer(row: Mapping[str, Any]) -> Layer:
    edges = tuple(Edge(**{**edge, "to": tuple(edge["to"])}) for edge in row["edges"])
    shared = tuple(SharedWeight(**weight) for weight in row.get("shared", ()))
    return Layer(**{**row, "edges": edges, "shared": shared})


def _cost(row: Mapping[str, Any]) -> LayerCost:
    series = ("rows", "forward_s", "backward_s", "sgd_s")
    return LayerCost(**{**row, **{name: tuple(row[name]) for name in series}})
