"""JSON and TOML in files: read in one guarded way, so that whatever is in a file ends as plain data
or as one error that says what is wrong with it; written whole or not at all.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from math import inf
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from potluck.errors import FileError, UserError
from potluck_wire.durable_rename import take_place
from potluck_wire.file_reading import read_file

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:
    import tomli as tomllib

MAX_DEPTH = 64  # tables and lists in one another; a model or a plan has 5
MAX_INTEGER = 2**63  # TOML promises no more, and a float holds it; nothing of a home is larger
MAX_VALUES = 4_000_000  # some 60 bytes of memory each; the document of a large model has 10,000
MAX_TEXT_BYTES = 256 * 2**20  # of one; the graph of a model of billions has some ten million
# Names in a row with dots between, each a table in the one before. The parser takes a minute for
# 50,000 of them: it goes through all before for each.
_PART = r"""(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_DEPTH}}}", re.ASCII)
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30
NEXT_STEP = "Mend it, or get it again from where it came."


def file_path(path: Any) -> Path:
    """The path that a user gave for a file or a folder.

    Parameters
    ----------
    path
        A text or a path.

    Raises
    ------
    UserError
        It is something else, or no file can be called so.
    """
    if not isinstance(path, str | PathLike) or not str(path) or "\0" in str(path):
        raise UserError(
            f"a file's path is a text or a pathlib.Path, got {path!r:.200}.",
            next_step="Give one, such as 'home.csv'.",
        )
    return Path(path)


def read_json(text: str | bytes, file: str, *, most_values: int = MAX_VALUES) -> Any:
    """The data in this JSON text.

    Parameters
    ----------
    text
        What is in the file.
    file
        Its name, for errors.
    most_values
        It may hold: numbers, texts, lists, tables. They are counted before any is made, by the
        signs that part them; those in texts count, too.

    Raises
    ------
    FileError
        It is no JSON, or holds what no file of ours does: more values, a number past all sizes,
        lists in lists without end.
    """
    signs = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, signs)) > most_values:  # type: ignore[arg-type]
        _refuse(file, "JSON", f"more than {most_values} values")
    return _read(json.loads, text, file, "JSON")


def read_json_file(path: Path, *, most_bytes: int, most_values: int) -> Any:
    """The data in a JSON file that somebody else may have written: no more of it is read than it
    may have.

    Parameters
    ----------
    path
        The file.
    most_bytes, most_values
        It may have.

    Raises
    ------
    FileError
        It cannot be read, is larger, or as for `read_json`.
    """
    try:
        text = read_file(path, most_bytes)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.", path=str(path)) from error
    return read_json(text, str(path), most_values=most_values)


def read_text(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """The text in a file that somebody named; lines end with a newline, whatever system wrote it.

    Parameters
    ----------
    path
        The file.
    most_bytes
        It may have.

    Raises
    ------
    OSError
        It cannot be read, is no ordinary file, or is larger; `strerror` says why.
    UnicodeDecodeError
        It is no text in UTF-8.
    """
    text = read_file(path, most_bytes).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_toml(text: str, file: str) -> dict[str, Any]:
    """The table in this TOML text. `file` names it in errors.

    Raises
    ------
    FileError
        It is no TOML, or holds what no file of ours does, as in `read_json`.
    """
    if _LONG_KEY.search(text):
        _refuse(file, "TOML", f"a name of more than {MAX_DEPTH} parts")
    table: dict[str, Any] = _read(tomllib.loads, text, file, "TOML")
    return table


def write_whole(path: Path, text: str) -> None:
    """Write a file that only its owner may read: all of it, or what was there stays.

    Parameters
    ----------
    path
        The file; its folder is made.
    text
        What it is to say.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with put_in_place(path) as part:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(part, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """Where to write in this block; the file is that, on the disk, once the block has ended.

    Parameters
    ----------
    path
        The file; where the block raises, it is as it was.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        take_place(part, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.", path=str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a file that the user asked for, in a folder that is there: all of it, or what was there
    stays. Whoever may read the user's files may read it.

    Parameters
    ----------
    path
        As the user gave it; returned as a path.
    text
        What it is to say; lines end as they do in it.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    UserError
        It is no path.
    """
    path = file_path(path)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            # nothing takes the place of a link, or of /dev/stdout
            path.write_text(text, encoding="utf-8", newline="")
            return path
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.", path=str(path)) from error
    with put_in_place(path) as part:
        part.write_text(text, encoding="utf-8", newline="")
    return path


def holds(value: object, kind: Any) -> bool:
    """Whether a value is of this type, and so is all that is in it.

    Parameters
    ----------
    value
        Built from a document.
    kind
        A type with its parameters, of plain data and of dataclasses. Numbers are as large as a
        home may have them: zero, infinite, or from 1e-30 to 1e30.
    """
    origin, within = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(holds(value, each) for each in within)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        each_of = within[:1] * len(value) if within[1:] == (...,) else within
        return len(value) == len(each_of) and all(map(holds, value, each_of))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            holds(key, within[0]) and holds(item, within[1]) for key, item in value.items()
        )
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value in (0, inf) or MIN_NUMBER <= abs(value) <= MAX_NUMBER
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return type(value) is kind and all(
            holds(getattr(value, field.name), hints[field.name]) for field in fields(kind)
        )
    return type(value) is kind


def _read(parse: Callable[[Any], Any], text: str | bytes, file: str, form: str) -> Any:
    try:
        document = parse(text)
    except RecursionError:
        _refuse(file, form, f"lists or tables more than {MAX_DEPTH} deep")
    except ValueError as error:  # of all that these two raise, and of integers with 5,000 digits
        _refuse(file, form, str(error)[:200])
    _check(document, file, form)
    return document


def _check(document: Any, file: str, form: str) -> None:
    """Without recursion: it may be deeper than Python's own calls."""
    level, depth = [document], 0
    while level:
        if depth > MAX_DEPTH:
            _refuse(file, form, f"lists or tables more than {MAX_DEPTH} deep")
        below: list[Any] = []
        for value in level:
            if type(value) is int and not -MAX_INTEGER <= value < MAX_INTEGER:
                _refuse(file, form, f"an integer of {value.bit_length()} bits")
            elif type(value) is dict:
                below += value.values()
            elif type(value) is list:
                below += value
        level, depth = below, depth + 1


def _refuse(file: str, form: str, got: str) -> NoReturn:
    text = f"{file}: expected {form} with numbers below 2**63, got {got}."
    raise FileError(text, next_step=NEXT_STEP, file=file) from None
