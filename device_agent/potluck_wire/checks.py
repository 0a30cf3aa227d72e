"""Checks of values from outside, put together from small ones: the fields of a header, the
documents behind it.

A check takes a value as it came and gives it as its reader holds it (lists become tuples); what
does not hold raises `Unfit`, and nothing else ever does. They nest as deep as they are written,
never as deep as what came.
"""

from collections.abc import Callable, Collection
from typing import Any, NoReturn

from potluck_wire.limits import MAX_BIN_BYTES, MAX_INT, MAX_STR_BYTES

Check = Callable[[Any], Any]


class Unfit(Exception):
    """A value that may not stand there.

    Parameters
    ----------
    expected
        What may stand there.
    got
        What stands there.
    place
        Where in the whole, such as `.layers[3]`.
    """

    def __init__(self, expected: str, got: Any, place: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.got = got
        self.place = place

    def __str__(self) -> str:
        return f"must be {self.expected}, got {shown(self.got)}"

    def within(self, place: str) -> "Unfit":
        """The same, seen from further out."""
        return Unfit(self.expected, self.got, place + self.place)


def shown(value: Any) -> str:
    """A value in an error's text. Only the size of what holds others: it may be nested deeper than
    `repr` goes.
    """
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:40]
    if isinstance(value, str | bytes | memoryview):
        return repr(value[:40])[:40]
    return f"{type(value).__name__} of {len(value)}"


def integer(low: int = 0, high: int = MAX_INT) -> Check:
    """An integer of that range; true and false are none."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Unfit(f"an integer in {low}..{'2**53' if high == MAX_INT else high}", value)
        return value

    return check


def floating(value: Any) -> float:
    """A finite float, small enough that sums and differences of many stay finite.

    Raises
    ------
    Unfit
        It is none.
    """
    if type(value) is not float or not -MAX_INT <= value <= MAX_INT:
        raise Unfit("a finite float within 2**53", value)
    return value


def number(value: Any) -> float:
    """A number of JSON, where 1 and 1.0 are the same.

    Raises
    ------
    Unfit
        It is none.
    """
    if type(value) not in (int, float) or not -MAX_INT <= value <= MAX_INT:
        raise Unfit("a number within 2**53", value)
    return float(value)


def boolean(value: Any) -> bool:
    """True or false.

    Raises
    ------
    Unfit
        It is none.
    """
    if type(value) is not bool:
        raise Unfit("true or false", value)
    return value


def text(value: Any) -> str:
    """A string of at most `MAX_STR_BYTES`.

    Raises
    ------
    Unfit
        It is none, or too long.
    """
    # A character takes at most four bytes, so only long strings have to be encoded to be measured.
    if type(value) is not str or (
        4 * len(value) > MAX_STR_BYTES and len(value.encode(errors="replace")) > MAX_STR_BYTES
    ):
        raise Unfit(f"a string of at most {MAX_STR_BYTES} bytes", value)
    return value


def raw(value: Any) -> bytes:
    """At most `MAX_BIN_BYTES` bytes.

    Raises
    ------
    Unfit
        They are none, or too many.
    """
    if type(value) is not bytes or len(value) > MAX_BIN_BYTES:
        raise Unfit(f"at most {MAX_BIN_BYTES} bytes", value)
    return value


def anything(value: Any) -> Any:
    """Any value: for what another reader checks by itself."""
    return value


def which(fits: Callable[[Any], bool], expected: str) -> Check:
    """A value that `fits` accepts; it has to take any type."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise Unfit(expected, value)
        return value

    return check


def one_of(names: Collection[str]) -> Check:
    """One of these names."""
    return which(lambda value: type(value) is str and value in names, f"one of {', '.join(names)}")


def rows(item: Check, max_entries: int) -> Check:
    """A list of at most so many; given as a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > max_entries:
            raise Unfit(f"a list of at most {max_entries} entries", value)
        try:
            return tuple([item(entry) for entry in value])
        except Unfit:
            _find(value, item)

    return check


def _find(values: list[Any], item: Check) -> NoReturn:
    """Which entry it is: looked for only where one does not hold."""
    for index, entry in enumerate(values):
        try:
            item(entry)
        except Unfit as unfit:
            raise unfit.within(f"[{index}]") from None
    raise AssertionError("a check that holds now and not before")


def row(*items: Check) -> Check:
    """A list with exactly these entries; given as a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            raise Unfit(f"a list of {len(items)}", value)
        return tuple([item(entry) for item, entry in zip(items, value, strict=True)])

    return check


def record(optional: Collection[str] = (), /, **fields: Check) -> Check:
    """An object with exactly these keys, of which the `optional` ones may be absent."""
    required = fields.keys() - set(optional)

    def check(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not required <= value.keys() <= fields.keys():
            perhaps = f", and perhaps {', '.join(optional)}" if optional else ""
            needed = ", ".join(name for name in fields if name in required)
            raise Unfit(f"an object with {needed or 'no key'}{perhaps}", value)
        checked = {}
        for name, entry in value.items():
            try:
                checked[name] = fields[name](entry)
            except Unfit as unfit:
                raise unfit.within(f".{name}") from None
        return checked

    return check
