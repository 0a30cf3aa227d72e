"""A message and its raw buffers <-> the frames of one ZeroMQ multipart message.

Frame 0 is the header, msgpack [number, {field: value}]; every further frame is a raw buffer,
untouched and uncopied.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from potluck_wire.checks import shown
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import (
    MAX_BIN_BYTES,
    MAX_BUFFER_BYTES,
    MAX_FIELDS,
    MAX_HEADER_BYTES,
    MAX_ITEMS,
    MAX_MESSAGE_BYTES,
    MAX_STR_BYTES,
    MAX_WORKER_HEADER_BYTES,
    MAX_WORKER_ITEMS,
)
from potluck_wire.messages import Channel, Message, MessageEntry
from potluck_wire.schema import SCHEMA_OF, SCHEMAS

__all__ = ["Buffer", "WireCode", "WireError", "decode", "encode"]

Buffer = bytes | memoryview


def header_cap(channel: Channel) -> int:
    """Bytes that a header on this channel may have."""
    return MAX_WORKER_HEADER_BYTES if channel is Channel.WORKER else MAX_HEADER_BYTES


_UNPACK: dict[Channel, dict[str, Any]] = {
    channel: {
        "max_array_len": MAX_WORKER_ITEMS if channel is Channel.WORKER else MAX_ITEMS,
        "max_map_len": MAX_FIELDS,
        "max_str_len": MAX_STR_BYTES,
        "max_bin_len": MAX_BIN_BYTES,
        "max_ext_len": 0,
        "strict_map_key": True,
        # a map arrives as a tuple of pairs: told from a list, repeated fields seen
        "object_pairs_hook": tuple,
    }
    for channel in Channel
}


def encode(
    message: Message, buffers: Sequence[bytes | bytearray | memoryview] = ()
) -> list[Buffer]:
    """The frames of a message. Buffers are not copied: leave them alone until they are sent.

    Raises
    ------
    WireError
        Where the receiver would refuse it: a field out of range, too many buffers, too long.
    """
    schema = SCHEMA_OF[type(message)]
    header: bytes = msgpack.packb([schema.number, schema.pack(message)])
    if len(header) > header_cap(schema.entry.channel):
        raise WireError(
            WireCode.SIZE, f"the header of {type(message).__name__} has {len(header)} bytes"
        )
    if not buffers and not schema.entry.buffers[0]:
        return [header]
    return [header, *_checked_buffers(schema.entry, buffers)]


def decode(frames: Sequence[Any], channel: Channel) -> tuple[Message, tuple[Buffer, ...]]:
    """The message in these frames (bytes, memoryviews or anything with the buffer protocol), and
    its raw buffers.

    Raises
    ------
    WireError
        On anything that is not exactly a message of this channel.
    """
    if not frames:
        raise WireError(WireCode.HEADER, "no frame at all")
    header = frames[0] if type(frames[0]) is bytes else memoryview(frames[0])
    if len(header) > header_cap(channel):
        raise WireError(
            WireCode.SIZE, f"a header of {len(header)} bytes, at most {header_cap(channel)}"
        )
    try:
        document = msgpack.unpackb(header, **_UNPACK[channel])
    # the base of all that unpackb raises, wrong UTF-8 and too deep nesting too
    except ValueError as error:
        raise WireError(
            WireCode.HEADER, f"not msgpack within the caps ({type(error).__name__})"
        ) from error
    if type(document) is not list or len(document) != 2 or type(document[1]) is not tuple:
        raise WireError(WireCode.HEADER, "not [number, {field: value}]")
    number, pairs = document
    schema = SCHEMAS.get(number) if type(number) is int else None
    if schema is None:
        raise WireError(WireCode.NUMBER, f"no message has the number {shown(number)}")
    entry = schema.entry
    if entry.channel is not channel:
        raise WireError(
            WireCode.CHANNEL,
            f"{entry.type.__name__} does not belong on the {channel.value} channel",
        )
    return schema.unpack(pairs), _checked_buffers(entry, frames[1:])


def _checked_buffers(entry: MessageEntry, buffers: Sequence[Any]) -> tuple[Buffer, ...]:
    min_buffers, max_buffers = entry.buffers
    if not min_buffers <= len(buffers) <= max_buffers:
        expected = (
            str(min_buffers) if min_buffers == max_buffers else f"{min_buffers} to {max_buffers}"
        )
        raise WireError(
            WireCode.BUFFERS, f"{entry.type.__name__} has {expected} buffers, got {len(buffers)}"
        )
    flat = tuple([buffer if type(buffer) is bytes else _flat(buffer) for buffer in buffers])
    total = 0
    for buffer in flat:
        if len(buffer) > MAX_BUFFER_BYTES:
            raise WireError(
                WireCode.SIZE, f"a buffer of {len(buffer)} bytes, at most {MAX_BUFFER_BYTES}"
            )
        total += len(buffer)
    if total > MAX_MESSAGE_BYTES:
        raise WireError(WireCode.SIZE, f"{total} bytes in one message, at most {MAX_MESSAGE_BYTES}")
    return flat


def _flat(buffer: Any) -> Buffer:
    """Any contiguous memory as plain bytes, uncopied."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise WireError(WireCode.BUFFERS, "a buffer is not contiguous")
    return view.cast("B") if view.nbytes else b""
