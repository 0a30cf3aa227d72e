"""The power of devices as it was measured, kept beside the keys of the notebook: what was measured
once is not measured again in the next session.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

from potluck.documents import holds, read_json, write_whole
from potluck.errors import FileError
from potluck.profile.power_model import Watts
from potluck.provenance import MEASURED
from potluck.sanitized_text import harmless
from potluck_wire.file_reading import read_file

FILE = "watts.json"
SCHEMA = 1
MOST_BYTES = 2**20
STEP = "Delete the file: the next profile measures again."


def kept_watts(folder: Path | None) -> dict[str, Watts]:
    """What was measured before, by the device's key.

    Parameters
    ----------
    folder
        Of the keys; None where there are none.

    Raises
    ------
    FileError
        The file is there and cannot be used.
    """
    path = None if folder is None else folder / FILE
    if path is None or not path.exists():
        return {}
    try:
        text = read_file(path, MOST_BYTES)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.", path=str(path)) from error
    return _read(read_json(text, str(path)), path)


def keep_watts(watts: Mapping[str, Watts], folder: Path | None) -> None:
    """Keep these in the folder of the keys, where there is one.

    Parameters
    ----------
    watts
        By the device's key.
    folder
        Of the keys; None where there are none.

    Raises
    ------
    FileError
        It cannot be written.
    """
    if folder is not None and watts:
        rows = {key: asdict(each) for key, each in sorted(watts.items())}
        write_whole(folder / FILE, json.dumps({"schema": SCHEMA, "devices": rows}, indent=1))


def _read(document: Any, path: Path) -> dict[str, Watts]:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _unusable(path, f"it is not of version {SCHEMA}")
    rows = document.get("devices")
    if not isinstance(rows, dict):
        raise _unusable(path, "it lists no devices")
    return {key: _watts(key, row, path) for key, row in rows.items()}


def _watts(key: str, row: Any, path: Path) -> Watts:
    try:
        watts = Watts(**row)
    except TypeError as error:
        raise _unusable(path, f"{key[:40]}: {error}") from error
    figures = (watts.idle_w, watts.busy_w, watts.radio_w, watts.error_w)
    if (
        not holds(watts, Watts)
        or watts.source != MEASURED
        or any(figure is not None and not 0 <= figure < inf for figure in figures)
    ):
        raise _unusable(path, f"{key[:40]}: expected watts as they were measured, got {row!r:.200}")
    return replace(watts, note=harmless(watts.note))


def _unusable(path: Path, why: str) -> FileError:
    return FileError(f"{path} cannot be used: {why}.", next_step=STEP, path=str(path))
