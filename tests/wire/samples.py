"""One sample of every message, every field set, and random ones, for all tests of the wire."""

import dataclasses
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

from potluck_wire.limits import MAX_INT
from potluck_wire.messages import MESSAGES, Message, MessageEntry

_BY_TYPE: dict[Any, Any] = {int: 7, float: 0.25, bool: True, str: "word", bytes: b"\x00\xff"}


def sample(entry: MessageEntry) -> Message:
    """A message with every field off its default."""
    values = {}
    for field in dataclasses.fields(entry.type):
        if get_origin(field.type) is tuple:
            values[field.name] = (_BY_TYPE[get_args(field.type)[0]],) * 2
        else:
            values[field.name] = _BY_TYPE[field.type]
    return entry.type(**values)


def sample_buffers(entry: MessageEntry) -> tuple[bytes, ...]:
    """As few buffers as the message may have."""
    return tuple(b"buffer %d" % index for index in range(entry.buffers[0]))


_STRATEGY: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, MAX_INT),
    float: st.floats(-(2.0**53), 2.0**53),
    bool: st.booleans(),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=100),
    bytes: st.binary(max_size=64),
}


@st.composite
def messages(draw: st.DrawFn) -> tuple[MessageEntry, Message, tuple[bytes, ...]]:
    """Any message of the table with any fields and buffers that it may have."""
    entry = draw(st.sampled_from(sorted(MESSAGES.values(), key=lambda entry: entry.type.__name__)))
    values = {}
    for field in dataclasses.fields(entry.type):
        if get_origin(field.type) is tuple:
            strategy = st.lists(_STRATEGY[get_args(field.type)[0]], max_size=20).map(tuple)
        else:
            strategy = _STRATEGY[field.type]
        values[field.name] = draw(strategy)
    fewest, most = entry.buffers
    buffers = draw(
        st.lists(st.binary(max_size=50), min_size=fewest, max_size=min(most, fewest + 2))
    )
    return entry, entry.type(**values), tuple(buffers)
