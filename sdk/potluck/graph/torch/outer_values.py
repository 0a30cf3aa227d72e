"""What a function reads of the module that it is written in, and of the functions around it: a
trace has these numbers as they were.
"""

import dis
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import lru_cache
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum)
_NUMBERS = (bool, int, float, complex)
_OWN = frozenset({"STORE_GLOBAL", "STORE_DEREF"})
_MOST = 64  # numbers of a list; functions that call each other


def outer_values(function: Any) -> dict[str, Any]:
    """Plain values that a function reads from outside, by name: numbers and words, numbers in a
    list, and those entries of a mapping or attributes of a plain object that it names. What it sets
    itself, such as a count of its calls, is left out; functions that it calls in the same file are
    looked into.

    Parameters
    ----------
    function
        A function of Python; of anything else there are none.

    >>> rate, options = 0.5, SimpleNamespace(power=2, seen=0)
    >>> sorted(outer_values(lambda x: rate * x**options.power).items())
    [('options.power', 2), ('rate', 0.5)]
    """
    found: dict[str, Any] = {}
    waiting, seen = [function], set[int]()
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if not isinstance(each, FunctionType) or id(each) in seen:
            continue
        seen.add(id(each))
        reads = _reads(each.__code__)
        for name, value in _outside(each, reads):
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                waiting.append(value)
            else:
                found.update(_plain(name, value, reads))
    return found


@dataclass(frozen=True, slots=True)
class _Reads:
    """Of a function: the names that it reads from outside and does not set, attributes and globals
    that it names, and its words.
    """

    enclosed: frozenset[str]
    globals: tuple[str, ...]
    names: frozenset[str]
    words: frozenset[str]


@lru_cache(maxsize=4096)
def _reads(code: CodeType) -> _Reads:
    codes = [*_codes(code)]
    steps = [step for each in codes for step in dis.get_instructions(each)]
    own = {step.argval for step in steps if step.opname in _OWN}
    return _Reads(
        enclosed=frozenset({*code.co_freevars} - own),
        globals=tuple(sorted({s.argval for s in steps if s.opname == "LOAD_GLOBAL"} - own)),
        names=frozenset(name for each in codes for name in each.co_names),
        words=frozenset(c for each in codes for c in each.co_consts if isinstance(c, str)),
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Of a function, and of those that are made within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _outside(function: FunctionType, reads: _Reads) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if name in reads.enclosed:
            with suppress(ValueError):  # nothing is in it yet
                yield name, cell.cell_contents
    for name in reads.globals:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _plain(name: str, value: Any, reads: _Reads) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
    elif isinstance(value, list) and 0 < len(value) <= _MOST:
        if all(isinstance(each, _NUMBERS) for each in value):
            yield name, tuple(value)
    elif isinstance(value, dict):
        for key in sorted(reads.words & {key for key in value if isinstance(key, str)}):
            if isinstance(value[key], _PLAIN):
                yield f"{name}[{key!r}]", value[key]
    elif isinstance(value, SimpleNamespace | Namespace) or is_dataclass(value):
        for key in sorted(reads.names & getattr(value, "__dict__", {}).keys()):
            if not isinstance(value, type) and isinstance(vars(value)[key], _PLAIN):
                yield f"{name}.{key}", vars(value)[key]
