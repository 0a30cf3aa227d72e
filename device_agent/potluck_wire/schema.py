"""The strict check of a header's fields, compiled once from the annotations of the message table.

A field at its default is left out on the wire. So a newer minor version's new field is invisible to an older peer
until somebody uses it, and the header of a chunk takes a dozen bytes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, get_args, get_origin

from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_BIN_BYTES, MAX_INT, MAX_ITEMS, MAX_STR_BYTES, MAX_WORKER_ITEMS, clip
from potluck_wire.messages import MESSAGES, Channel, Entry, Message

Plain = Callable[[Any], Any]
Check = Callable[[Any], Any]  # a value as it came -> the value as the message holds it; raises _Unfit

TEXTS = frozenset({"text", "reason"})  # fields for people: clipped by the sender rather than refused


class _Unfit(Exception):
    """A value that its field cannot hold; says what was expected."""


def _check_int(low: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= MAX_INT:
            raise _Unfit(f"an integer in {low}..2**53")
        return value

    return check


def _check_float(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise _Unfit("a finite float")
    return value


def _check_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Unfit("true or false")
    return value


def _check_str(value: Any) -> str:
    # A character takes at most four bytes, so only long strings have to be encoded to be measured.
    if type(value) is not str or (
        4 * len(value) > MAX_STR_BYTES and len(value.encode(errors="replace")) > MAX_STR_BYTES
    ):
        raise _Unfit(f"a string of at most {MAX_STR_BYTES} bytes")
    return value


def _check_bytes(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > MAX_BIN_BYTES:
        raise _Unfit(f"at most {MAX_BIN_BYTES} bytes")
    return value


def _check_tuple(item: Check, most: int) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise _Unfit(f"a list of at most {most} entries")
        return tuple([item(entry) for entry in value])

    return check


_PLAIN: dict[Any, Check] = {
    int: _check_int(0),
    float: _check_float,
    bool: _check_bool,
    str: _check_str,
    bytes: _check_bytes,
}


def _compile(field: "dataclasses.Field[Any]", channel: Channel) -> Check:
    """The check of one field. Integers are not negative, unless -1 is the field's default (it stands for "none")."""
    most = MAX_WORKER_ITEMS if channel is Channel.WORKER else MAX_ITEMS
    if field.type is int and field.default == -1:
        return _check_int(-1)
    if field.type in _PLAIN:
        return _PLAIN[field.type]
    if get_origin(field.type) is tuple:
        return _check_tuple(_PLAIN[get_args(field.type)[0]], most)
    raise TypeError(f"a message cannot have a field of type {field.type}")


class Schema:
    """One message type: its fields with their checks and defaults."""

    __slots__ = ("checks", "entry", "fields", "get", "number")

    def __init__(self, number: int, entry: Entry) -> None:
        fields = dataclasses.fields(entry.type)
        self.number, self.entry = number, entry
        self.checks: dict[str, Check] = {field.name: _compile(field, entry.channel) for field in fields}
        self.fields: tuple[tuple[str, Any, type, Plain | None, Check], ...] = tuple(
            (field.name, field.default, type(field.default), _plain(field), self.checks[field.name]) for field in fields
        )
        self.get: Callable[[Any], tuple[Any, ...]] = _getter(tuple(self.checks))

    def pack(self, message: Message) -> dict[str, Any]:
        """The fields that are not at their default, checked: what one side packs the other accepts."""
        packed: dict[str, Any] = {}
        name, value = "", None
        try:
            for (name, default, kind, plain, check), value in zip(self.fields, self.get(message), strict=True):
                if value != default or type(value) is not kind:
                    packed[name] = value = value if plain is None else plain(value)
                    check(value)
        except _Unfit as unfit:
            raise self._refusal(name, unfit, value) from None
        return packed

    def unpack(self, pairs: Iterable[tuple[str, Any]]) -> Message:
        """The message with these fields; WireError on an unknown, repeated or unfit one."""
        checks, values = self.checks, {}
        name, value = "", None
        try:
            for name, value in pairs:
                if name in values or name not in checks:
                    how = f"has {name!r:.40} twice" if name in values else f"has no field {name!r:.40}"
                    raise WireError(WireCode.FIELD, f"{self.entry.type.__name__} {how}")
                values[name] = checks[name](value)
        except _Unfit as unfit:
            raise self._refusal(name, unfit, value) from None
        return self.entry.type(**values)

    def _refusal(self, name: str, unfit: _Unfit, value: Any) -> WireError:
        return WireError(WireCode.FIELD, f"{self.entry.type.__name__}.{name} must be {unfit}, got {value!r:.40}")


def _plain(field: "dataclasses.Field[Any]") -> Plain | None:
    """What makes the form that goes into msgpack: lists of tuples, floats where floats are meant, clipped texts."""
    if type(field.default) is float:
        return lambda value: float(value) if type(value) is int else value
    if type(field.default) is tuple:
        return lambda value: list(value) if type(value) is tuple else value
    if field.name in TEXTS:
        return lambda value: clip(value) if type(value) is str else value
    return None


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if not names:
        return lambda message: ()
    if len(names) == 1:
        one = attrgetter(names[0])
        return lambda message: (one(message),)
    return attrgetter(*names)


SCHEMAS: dict[int, Schema] = {number: Schema(number, entry) for number, entry in MESSAGES.items()}
SCHEMA_OF: dict[type[Message], Schema] = {schema.entry.type: schema for schema in SCHEMAS.values()}
