"""What a user gave for an argument: whether it is a number, or a yes or no. Pure."""

from typing import Any

from potluck.errors import UserError


def number_of(given: Any) -> float | None:
    """A number as a float; None where it is none, or beyond every float.

    Parameters
    ----------
    given
        Anything.

    >>> number_of(2), number_of("2"), number_of(True), number_of(10**400)
    (2.0, None, None, None)
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        return float(given)
    except OverflowError:
        return None


def check_flags(*, or_none: bool = False, **given: Any) -> None:
    """See that each of these is True or False.

    Parameters
    ----------
    or_none
        None will do, too.
    **given
        By the name of the argument.

    Raises
    ------
    UserError
        Names one that is something else.
    """
    for name, value in given.items():
        if not isinstance(value, bool) and not (or_none and value is None):
            raise UserError(f"{name} is True or False, got {value!r:.60}.")
