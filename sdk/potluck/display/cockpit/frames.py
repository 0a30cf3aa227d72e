"""A state as frames of bytes: whole, or what has changed since the frame before. Pure.

A frame is the length of its head (4 bytes, little endian), the head as JSON, and rows of 32-bit
floats one log after the other. The head has `n`, the number of the frame, and `on`, that of the
frame that it changes (0: it is whole); `set`, a merge patch of the sections (RFC 7386: null takes
away); `texts`, per log the number of its first new item and they; `rows`, per log its name, how
many figures a row has, the number of its first new row and how many there are.

A page that missed one waits for the next whole one: as in a film, these come again and again, so
that whoever comes later needs to ask nobody.
"""

import json
import math
import struct
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from potluck.display.cockpit.state import WIDTHS, CockpitState, Sections

HEAD = struct.Struct("<I")


class Frames:
    """Makes the frames of one state, in order."""

    def __init__(self) -> None:
        self._n = 0
        self._sections: Sections = {}
        self._ends: dict[str, int] = {}

    def full(self, state: CockpitState) -> bytes:
        """All of it; the frames after it change it."""
        self._sections, self._ends = {}, {}
        return self._frame(state, on=0)

    def change(self, state: CockpitState) -> bytes | None:
        """What is new since the frame before; None where nothing is."""
        return self._frame(state, on=self._n) if self._has_news(state) else None

    def _has_news(self, state: CockpitState) -> bool:
        logs = {**state.texts, **state.rows}
        return self._sections != state.sections or any(
            self._ends.get(name, 0) != log.end for name, log in logs.items()
        )

    def _frame(self, state: CockpitState, on: int) -> bytes:
        patch = difference(self._sections, state.sections)
        texts = {}
        rows = []
        figures = array("f")
        for name, log in state.texts.items():
            start, items = log.since(self._ends.get(name, 0))
            if items:
                texts[name] = [start, list(items)]
            self._ends[name] = log.end
        for name, numbers in state.rows.items():
            start, new = numbers.since(self._ends.get(name, 0))
            if new:
                rows.append([name, WIDTHS[name], start, len(new)])
                for row in new:
                    figures.extend(row)
            self._ends[name] = numbers.end
        self._n += 1
        self._sections = dict(state.sections)
        head = {"n": self._n, "on": on, "set": patch, "texts": texts, "rows": rows}
        if sys.byteorder == "big":
            figures.byteswap()
        try:
            document = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
        except ValueError:  # a figure is infinite or none: JSON has no such numbers
            document = json.dumps(_finite(head), separators=(",", ":")).encode()
        return HEAD.pack(len(document)) + document + figures.tobytes()


def _finite(value: Any) -> Any:
    """The same with nothing in the place of what is no number."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes `new` of `old` (RFC 7386).

    >>> difference({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}})
    {'b': {'d': 4}, 'a': None}
    """
    patch: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if value is before and key in old:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := difference(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    patch |= {key: None for key in old if key not in new}
    return patch


class FrameReader:
    """A state as a page has it: made again from frames."""

    def __init__(self) -> None:
        self.n = 0
        self.sections: dict[str, Any] = {}
        self.texts: dict[str, dict[int, Any]] = {}
        self.rows: dict[str, dict[int, tuple[float, ...]]] = {}

    def take(self, frame: bytes) -> bool:
        """Apply it; whether it fitted what is known."""
        (length,) = HEAD.unpack_from(frame)
        head = json.loads(frame[HEAD.size : HEAD.size + length])
        if head["on"] == 0:
            self.sections = {}
            self.texts = {}
            self.rows = {}
        elif head["on"] != self.n:
            return False
        self.n = head["n"]
        merge(self.sections, head["set"])
        for name, (start, items) in head["texts"].items():
            self.texts.setdefault(name, {}).update(enumerate(items, start))
        figures = array("f", frame[HEAD.size + length :])
        if sys.byteorder == "big":
            figures.byteswap()
        at = 0
        for name, width, start, n_rows in head["rows"]:
            kept = self.rows.setdefault(name, {})
            for index in range(n_rows):
                kept[start + index] = tuple(figures[at : at + width])
                at += width
        return True


def merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Apply a merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            inner = target.get(key)
            if not isinstance(inner, dict):
                inner = target[key] = {}
            merge(inner, value)
        else:
            target[key] = value
