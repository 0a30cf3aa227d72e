"""The strict check of a header's fields, compiled once from the annotations of the message table.

A field at its default is left out on the wire. So a newer minor version's new field is invisible to
an older peer until somebody uses it, and the header of a chunk takes a dozen bytes.
"""

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, get_args, get_origin

from potluck_wire import checks
from potluck_wire.checks import Check, Unfit
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_ITEMS, MAX_WORKER_ITEMS, clip
from potluck_wire.messages import MESSAGES, Channel, Message, MessageEntry

Plain = Callable[[Any], Any]

# fields for people: clipped by the sender rather than refused
TEXTS = frozenset({"text", "reason"})


_PLAIN: dict[Any, Check] = {
    int: checks.integer(),
    float: checks.floating,
    bool: checks.boolean,
    str: checks.text,
    bytes: checks.raw,
}


def _compile(field: "dataclasses.Field[Any]", channel: Channel) -> Check:
    """The check of one field. Integers are not negative, unless -1 is the field's default (it
    stands for "none").
    """
    max_items = MAX_WORKER_ITEMS if channel is Channel.WORKER else MAX_ITEMS
    if field.type is int and field.default == -1:
        return checks.integer(-1)
    if field.type in _PLAIN:
        return _PLAIN[field.type]
    if get_origin(field.type) is tuple:
        return checks.rows(_PLAIN[get_args(field.type)[0]], max_items)
    raise TypeError(f"a message cannot have a field of type {field.type}")


class Schema:
    """One message type: its fields with their checks and defaults."""

    __slots__ = ("checks", "entry", "fields", "get", "number")

    def __init__(self, number: int, entry: MessageEntry) -> None:
        fields = dataclasses.fields(entry.type)
        self.number, self.entry = number, entry
        self.checks: dict[str, Check] = {
            field.name: _compile(field, entry.channel) for field in fields
        }
        self.fields: tuple[tuple[str, Any, type, Plain | None, Check], ...] = tuple(
            (field.name, field.default, type(field.default), _plain(field), self.checks[field.name])
            for field in fields
        )
        self.get: Callable[[Any], tuple[Any, ...]] = _getter(tuple(self.checks))

    def pack(self, message: Message) -> dict[str, Any]:
        """The fields that are not at their default, checked: what one side packs the other accepts.

        Raises
        ------
        WireError
            A field is out of its range.
        """
        packed: dict[str, Any] = {}
        name = ""
        try:
            for (name, default, kind, plain, check), value in zip(
                self.fields, self.get(message), strict=True
            ):
                if value != default or type(value) is not kind:
                    packed[name] = value = value if plain is None else plain(value)
                    check(value)
        except Unfit as unfit:
            raise self._refusal(name, unfit) from None
        return packed

    def unpack(self, pairs: Iterable[tuple[str, Any]]) -> Message:
        """The message with these fields.

        Parameters
        ----------
        pairs
            Names and values, as they came.

        Raises
        ------
        WireError
            A field is unknown, comes twice, or is unfit.
        """
        known, values = self.checks, {}
        name = ""
        try:
            for name, value in pairs:
                if name in values or name not in known:
                    how = (
                        f"has {name!r:.40} twice"
                        if name in values
                        else f"has no field {name!r:.40}"
                    )
                    raise WireError(WireCode.FIELD, f"{self.entry.type.__name__} {how}")
                values[name] = known[name](value)
        except Unfit as unfit:
            raise self._refusal(name, unfit) from None
        return self.entry.type(**values)

    def _refusal(self, name: str, unfit: Unfit) -> WireError:
        place = f"{self.entry.type.__name__}.{name}{unfit.place}"
        return WireError(WireCode.FIELD, f"{place} {unfit}")


def _plain(field: "dataclasses.Field[Any]") -> Plain | None:
    """What makes the form that goes into msgpack: lists of tuples, floats where floats are meant,
    clipped texts.
    """
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
