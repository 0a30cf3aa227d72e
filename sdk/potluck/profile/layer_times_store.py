"""Measured layer times on disk, so that a second profile takes no time: one JSON file per model and
device.

A file that is corrupt or of another version is left alone and measured anew, with a warning that
names it; no other file is touched.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.documents import read_json, write_whole
from potluck.errors import FileError, UserError
from potluck.records import LayerCost
from potluck_wire.file_reading import read_file
from potluck_wire.processors import CPU

if TYPE_CHECKING:
    from potluck.profile.profiles import Profile
    from potluck.sessions.members import Members

MAX_BYTES = 64 * 2**20  # of a file; 10,000 layers take some 10 MiB
SCHEMA = 3  # a newer one measures anew


def cache_dir() -> Path:
    """$POTLUCK_HOME/profiles, or `potluck/profiles` in the platform's cache directory."""
    chosen = os.environ.get("POTLUCK_HOME")
    if chosen:
        return Path(chosen) / "profiles"
    base = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "potluck" / "profiles"


class LayerTimesStore:
    """The cache. What a device's times depend on goes into `about`: key, backends, slowdown,
    threads.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_dir()

    def path(self, signature: str, about: Mapping[str, Any]) -> Path:
        """Where the times of a model on a device are kept."""
        text = json.dumps([signature, dict(about)], sort_keys=True, default=str)
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def load(
        self,
        signature: str,
        about: Mapping[str, Any],
        *,
        train: bool,
        rows: Sequence[int],
        n_layers: int,
    ) -> tuple[LayerCost, ...] | None:
        """The times, if they were measured for at least these batch sizes; else None.

        Parameters
        ----------
        signature
            Of the model.
        about
            What the device's times depend on: key, backends, slowdown, threads.
        train
            For training.
        rows
            Batch sizes that are needed.
        n_layers
            Layers that are needed.

        Raises
        ------
        FileError
            Where the file is there but cannot be used; says which and why.
        """
        path = self.path(signature, about)
        try:
            document = read_json(read_file(path, MAX_BYTES), str(path))
        except FileNotFoundError:
            return None
        except (OSError, FileError) as error:
            raise _unusable(path, str(error)) from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else None
            raise _unusable(path, f"it is of schema {found!r}, this version writes {SCHEMA}")
        try:
            entry = document["modes"].get("training" if train else "inference")
            costs = tuple(_cost(row) for row in entry) if entry is not None else None
        except (KeyError, TypeError, AttributeError, UserError) as error:
            raise _unusable(path, str(error)) from error
        enough = (
            costs is not None
            and len(costs) == n_layers
            and all(set(rows) <= set(cost.rows) for cost in costs)
        )
        return costs if enough else None

    def save(
        self, signature: str, about: Mapping[str, Any], costs: Sequence[LayerCost], *, train: bool
    ) -> None:
        """Keep the times; what the file held for the other mode stays.

        Parameters
        ----------
        signature
            Of the model.
        about
            What the device's times depend on: key, backends, slowdown, threads.
        costs
            One for each layer.
        train
            For training.

        Raises
        ------
        FileError
            Where it cannot be written.
        """
        path = self.path(signature, about)
        modes: dict[str, Any] = {}
        # `load` reports them
        with suppress(OSError, FileError, ValueError, KeyError, TypeError, AttributeError):
            document = read_json(read_file(path, MAX_BYTES), str(path))
            modes = dict(document["modes"]) if document.get("schema") == SCHEMA else {}
        modes["training" if train else "inference"] = [asdict(cost) for cost in costs]
        document = {"schema": SCHEMA, "signature": signature, "modes": modes}
        write_whole(path, json.dumps(document, indent=1))


def _cost(row: Mapping[str, Any]) -> LayerCost:
    return LayerCost(
        rows=tuple(row["rows"]),
        forward_s=tuple(row["forward_s"]),
        backward_s=tuple(row["backward_s"]),
        source=str(row["source"]),
        update_s=row["update_s"],
        sgd_s=tuple(row.get("sgd_s", ())),
        weight_frac=row.get("weight_frac"),
    )


def _unusable(path: Path, why: str) -> FileError:
    return FileError(
        f"the cached profile {path} cannot be used: {why}.",
        next_step="It is measured anew.",
        path=str(path),
    )


def keep(store: LayerTimesStore, profile: "Profile", members: "Members") -> None:
    """Write the layer times of a profile into the cache, but for emulated devices and those that
    other notebooks use now.

    Parameters
    ----------
    store
        The cache.
    profile
        What is kept.
    members
        Tells who is emulated or used.
    """
    for mode, known in ((True, profile.training), (False, profile.inference)):
        for name, costs in known.costs.items() if known else ():
            capability = members[name].capability
            if not (capability.get("emulated") or capability.get("n_beside")):
                about = about_of(members[name].key, members[name].capability)
                store.save(profile.signature, about, costs, train=mode)


def about_of(key: str, capability: Mapping[str, Any]) -> dict[str, Any]:
    """What the times of a device depend on.

    An emulated device makes a new key each time: its host stands for it.
    """
    emulated = capability.get("emulated")
    who = f"emulated on {capability.get('host')}" if emulated else key
    return {
        "who": who,
        "slowdown": (emulated or {}).get("slowdown"),
        "threads": capability.get("threads"),
        "backends": capability.get("backends"),
        "accelerators": sorted(
            str(entry["name"])
            for entry in capability.get("processors", ())
            if entry["kind"] != CPU and entry.get("used") is not False
        ),
    }
