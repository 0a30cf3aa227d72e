"""One array in a file, `.npy`, `.npz` or safetensors, in a folder that may be read: its rows, when
they are asked for. Whatever the file says is checked first, and nothing in it is ever run.
"""

import hashlib
import json
import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import psutil

from potluck import units
from potluck.errors import FileError
from potluck.run.file_rows import FileRows
from potluck.tensor_file import MAX_HEADER_BYTES, check_header

if TYPE_CHECKING:
    import torch

MAX_NAME = 500
WHOLE_BYTES = 64 << 20  # of a larger file these are looked at, spread over it
_BLOCK_BYTES = 1 << 20
_KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# types as safetensors calls them -> as torch does
_TORCHS = {"BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64"}
_TORCHS |= {"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "C64": "complex64"}
_TORCHS |= {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_TORCHS |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
# what a file that is none makes of its readers
_ODD = (
    ValueError,
    TypeError,
    SyntaxError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    EOFError,
    tokenize.TokenError,
)
_ODD_ZIP = (
    *_ODD,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
    KeyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFile:
    """An array [rows, ...] of which rows can be read.

    `name`: as it was asked for; `path`: the file. `dtype`: torch's name. `take(rows)`: those rows.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str
    take: "Callable[[Sequence[int]], torch.Tensor]"

    def blank(self, n_rows: int) -> "torch.Tensor":
        """So many rows of zeros, without memory of their own: where nobody looks at their values.

        Parameters
        ----------
        n_rows
            How many.
        """
        import torch

        return torch.zeros((), dtype=getattr(torch, self.dtype)).expand(n_rows, *self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Of one row in a batch."""
        return item_bytes(self.dtype) * math.prod(self.shape[1:])


def open_array(folder: Path, name: str) -> ArrayFile:
    """The array of this name.

    Parameters
    ----------
    folder
        Nothing outside of it is read.
    name
        The path in it, with "/" between folders; where the file has several arrays, ":" and which:
        "digits/train.npz:images".

    Raises
    ------
    FileError
        There is none, it is outside of the folder, or the file does not hold; says which file and
        folder, and what to do.
    """
    place, key = _split(name)
    path = _inside(folder, place, name)
    opened = _READERS.get(path.suffix)
    if opened is None:
        raise FileError(
            f"{name!r} in {folder} is no file of arrays.",
            next_step=f"Save it as one of {', '.join(_READERS)}; numpy.save makes .npy files.",
            path=str(path),
        )
    try:
        shape, dtype, take = opened(path, key)
    except OSError as error:
        raise FileError(
            f"cannot read {name!r} in {folder}: {error.strerror or error}.", path=str(path)
        ) from error
    except _Odd as error:
        raise FileError(f"{name!r} in {folder} {error}.", path=str(path)) from error
    return ArrayFile(name=name, path=path, shape=shape, dtype=dtype, take=take)


def fingerprint(path: Path) -> str:
    """Tells a file from others: SHA-256 of its size and of all of it; of one larger than 64 MiB, of
    64 pieces of 1 MiB that are spread evenly over it, the first and the last ones among them.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    FileError
        It cannot be read.
    """
    try:
        with path.open("rb") as file:
            nbytes = file.seek(0, 2)
            found = hashlib.sha256(str(nbytes).encode())
            for at in _looked_at(nbytes):
                file.seek(at)
                found.update(file.read(_BLOCK_BYTES))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.", path=str(path)) from error
    return found.hexdigest()


def _looked_at(nbytes: int) -> list[int]:
    """Where the pieces begin."""
    if nbytes <= WHOLE_BYTES:
        return [*range(0, nbytes, _BLOCK_BYTES)]
    n, last = WHOLE_BYTES // _BLOCK_BYTES, nbytes - _BLOCK_BYTES
    return [i * last // (n - 1) for i in range(n)]


def item_bytes(dtype: str) -> int:
    """Of one number.

    Parameters
    ----------
    dtype
        Torch's name of its type.
    """
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    return kind.itemsize


# --- where it is ----------------------------------------------------------------------------------


def _split(name: str) -> tuple[str, str]:
    place, _, key = name.partition(":")
    return place, key


def _inside(folder: Path, place: str, name: str) -> Path:
    """The file, which is in the folder whatever links there are."""
    pure = PurePosixPath(place)
    is_plain = len(name) <= MAX_NAME and not set(place) & set("\\\0") and place == str(pure)
    if not is_plain or pure.is_absolute() or ".." in pure.parts or not pure.name:
        raise FileError(
            f"{name[:MAX_NAME]!r} is no path inside a folder.",
            next_step="Say where it is from the folder on, such as 'digits/images.npy'.",
        )
    try:
        root = folder.resolve(strict=True)
        path = (root / pure).resolve(strict=True)
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "its links lead nowhere"
        raise FileError(
            f"cannot reach {name!r} in {folder}: {why}.",
            next_step=f"Put the file into {folder} on that computer, or say where in it it is.",
            path=str(folder / pure),
        ) from error
    if not path.is_relative_to(root) or not is_file:
        raise FileError(
            f"{name!r} is no file in {folder}, or leads out of it.",
            next_step=f"Put the file itself into {folder}.",
            path=str(folder / pure),
        )
    return path


# --- what it says ---------------------------------------------------------------------------------


class _Odd(ValueError):
    """The file is not what it should be: says how."""


Opened = tuple[tuple[int, ...], str, "Callable[[Sequence[int]], torch.Tensor]"]


def _npy(path: Path, key: str) -> Opened:
    """Rows are read where the file has them, and it is never in memory as a whole; but for one in
    which rows do not lie together (Fortran's order).
    """
    import numpy

    if key:
        raise _Odd(f"has one array, and not one called {key!r}")
    with path.open("rb") as file:
        shape, is_fortran, dtype = _header(file)
        at, nbytes = file.tell(), file.seek(0, 2)
        _check_size(shape, dtype, nbytes - at)
        if is_fortran:
            _check_room(nbytes)
            file.seek(at)
            data = file.read()
            _check_size(shape, dtype, len(data))
            return _in_memory(data, shape, is_fortran, dtype)
    lying = FileRows(path, at, dtype.itemsize * math.prod(shape[1:]))

    def take(rows: Sequence[int]) -> "torch.Tensor":
        import torch

        found = numpy.frombuffer(lying.read(rows), dtype).reshape(len(rows), *shape[1:])
        return torch.from_numpy(found.astype(dtype.newbyteorder("="), copy=False))

    return shape, dtype.name, take


def _npz(path: Path, key: str) -> Opened:
    """It is read whole: rows in the middle of what is packed cannot be."""
    try:
        with zipfile.ZipFile(path) as file:
            names = [each.removesuffix(".npy") for each in file.namelist() if each[-4:] == ".npy"]
            key = _one_of(key, names)
            info = file.getinfo(f"{key}.npy")
            _check_room(info.file_size)
            with file.open(info) as member:
                shape, is_fortran, dtype = _header(member)
                data = member.read(info.file_size)
                _check_size(shape, dtype, len(data) + len(member.read(1)))
    except _Odd:
        raise
    except _ODD_ZIP as error:
        raise _Odd(f"is no file of arrays: {error or type(error).__name__}") from error
    return _in_memory(data, shape, is_fortran, dtype)


def _safetensors(path: Path, key: str) -> Opened:
    import torch
    from safetensors import SafetensorError, safe_open

    header_bytes = check_header(path, MAX_HEADER_BYTES)
    try:
        # It checks all that the file says. Torch would map it as if it were to be written to, which
        # systems refuse of one larger than memory.
        with safe_open(path, framework="np") as file:
            key = _one_of(key, [*file.keys()])
            part: Any = file.get_slice(key)
            shape = tuple(part.get_shape())
            if not shape or 0 in shape:
                raise _Odd(f"has no rows: its shape is {list(shape)}")
            kind = getattr(torch, _TORCHS.get(name := part.get_dtype(), "?"), None)
            if kind is None:
                raise _Odd(f"is of type {name}, which torch has not")
    except SafetensorError as error:
        raise _Odd(f"is no file of tensors: {error}") from error
    with path.open("rb") as raw:
        header = json.loads(raw.read(8 + header_bytes)[8:])
    begins = 8 + header_bytes + header[key]["data_offsets"][0]
    lying = FileRows(path, begins, kind.itemsize * math.prod(shape[1:]))

    def take(rows: Sequence[int]) -> "torch.Tensor":
        return torch.frombuffer(lying.read(rows), dtype=kind).reshape(len(rows), *shape[1:])

    return shape, str(kind).removeprefix("torch."), take


_READERS: dict[str, Callable[[Path, str], Opened]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
}


def _one_of(key: str, names: Sequence[str]) -> str:
    if not key and len(names) == 1:
        return names[0]
    if key not in names:
        listed = ", ".join(names[:20]) or "none"
        problem = f"not {key!r}" if key else "it is not said which one: add ':' and its name"
        raise _Odd(f"has the arrays {listed}, and {problem}")
    return key


def _header(file: "IO[bytes]") -> tuple[tuple[int, ...], bool, Any]:
    """What the head of a .npy says: shape, whether the first index runs fastest, type."""
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        if version == (1, 0):
            shape, is_fortran, dtype = npy.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, is_fortran, dtype = npy.read_array_header_2_0(file)
        else:
            raise _Odd(f"is of version {version} of its format")
    except _Odd:
        raise
    except _ODD as error:
        raise _Odd(f"is no array: {str(error) or type(error).__name__:.200}") from error
    if dtype.hasobject or dtype.names is not None or dtype.name not in _KINDS:
        raise _Odd(f"is of type {dtype.name}; these are read: {', '.join(_KINDS)}")
    if not shape or not all(type(n) is int and n > 0 for n in shape):
        raise _Odd(f"has no rows: its shape is {list(shape)!r:.200}")
    return shape, bool(is_fortran), dtype


def _check_size(shape: tuple[int, ...], dtype: Any, nbytes: int) -> None:
    stated_bytes = math.prod(shape) * dtype.itemsize
    if stated_bytes != nbytes:
        raise _Odd(
            f"says that it is {list(shape)} of {dtype.name}, {stated_bytes} bytes, and has {nbytes}"
        )


def _check_room(nbytes: int) -> None:
    free = psutil.virtual_memory().available
    if nbytes > free:
        raise _Odd(
            f"has {units.size(nbytes)}, which are read whole, and {units.size(free)} of memory are "
            "free; a .npy is read in parts"
        )


def _in_memory(data: bytes, shape: tuple[int, ...], is_fortran: bool, dtype: Any) -> Opened:
    import numpy

    array = numpy.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")

    def take(rows: Sequence[int]) -> "torch.Tensor":
        import torch

        found = numpy.ascontiguousarray(array[rows], array.dtype.newbyteorder("="))
        return torch.from_numpy(found.reshape(len(rows), *array.shape[1:]))

    return shape, dtype.name, take
