"""The bytes of an ONNX file, looked at without the package onnx: whoever gave a wrong path learns
it in any install.
"""

from pathlib import Path

from potluck.errors import FileError
from potluck_wire.file_reading import read_file

MAX_BYTES = 2**31  # no message of protobuf is larger
GRAPH = 7  # the field of a ModelProto that holds the graph
# how a field of a protobuf message may be written
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5


def read_bytes(path: Path) -> bytes:
    """All of the file.

    Raises
    ------
    FileError
        It is missing, no ONNX file, or was cut short.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error
    try:
        fields = _fields(data)
    except ValueError as error:
        raise FileError(
            f"{path} is not an ONNX file, or was cut short ({error}).",
            next_step="Export it again: torch.onnx.export(net, example, path).",
            path=str(path),
        ) from error
    if GRAPH not in fields:
        raise FileError(f"{path} holds no graph with outputs.", path=str(path))
    return data


def _fields(data: bytes) -> set[int]:
    """The numbers of the fields of a protobuf message; ValueError where these bytes are none."""
    found, at = set(), 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no field begins with {tag}")
        if number == 0 or at > len(data):
            raise ValueError(f"field {number} ends behind byte {len(data)}, the last one")
        found.add(number)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to ten bytes, and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError(f"no number is at byte {at}")
