"""What a device has promised to coordinators, on its disk."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from potluck_agent.errors import AgentError
from potluck_agent.keys import MAX_PEERS, read_private, write_private
from potluck_wire.documents import dump
from potluck_wire.file_reading import is_there
from potluck_wire.limits import MAX_LEASES, MAX_STR_BYTES, is_identifier, is_key

FILE = "leases.json"  # in the agent's state directory
# JSON writes a byte of text with up to six
MAX_FILE_BYTES = MAX_PEERS * MAX_LEASES * (6 * MAX_STR_BYTES + 1024)
_NUMBERS = ("term", "accepted_term", "accepted_serial")


def keep(state: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Have these rows on the disk, in place of those before.

    Raises
    ------
    AgentError
        They cannot be written.
    """
    write_private(state / FILE, list(rows))


def kept(state: Path) -> str:
    """What was kept, as JSON; empty where nothing was.

    Raises
    ------
    AgentError
        It cannot be read, or is not what this agent writes.
    """
    path = state / FILE
    if not is_there(path):
        return ""
    rows = read_private(path, MAX_FILE_BYTES)
    if not is_sound(rows):
        raise AgentError(f"{path} is corrupt. Delete it once no coordinator trains any more.")
    return dump(rows).decode()


def is_sound(rows: Any) -> bool:
    """Whether this is what was kept.

    Parameters
    ----------
    rows
        As they were read.
    """
    return isinstance(rows, list | tuple) and all(map(_is_row, rows))


def _is_row(row: Any) -> bool:
    match row:
        case {"name": str(name), "key": str(key), "record": str(), "lasts_s": int() | float()}:
            numbers = [row.get(number) for number in _NUMBERS]
            is_whole = all(type(number) is int and number >= 0 for number in numbers)
            return is_identifier(name) and is_key(key) and is_whole and len(row) == 7
    return False
