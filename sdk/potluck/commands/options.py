"""Values of options that several commands have."""

import argparse

HIGHEST_PORT = 65535
MOST_WAIT_S = 3600.0


def is_port(text: str) -> bool:
    """Whether it is a port, or 0 for any.

    Parameters
    ----------
    text
        As it was given.

    >>> is_port("8080"), is_port("0"), is_port("65536"), is_port("")
    (True, True, False, False)
    """
    return text.isascii() and text.isdecimal() and int(text) <= HIGHEST_PORT


def port(text: str) -> int:
    """A port to listen at; 0: any.

    Parameters
    ----------
    text
        As it was given.

    Raises
    ------
    ArgumentTypeError
        There is no such port.
    """
    if not is_port(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: a port from 1 to {HIGHEST_PORT} is expected, or 0 for any"
        )
    return int(text)


def wait_s(text: str) -> float:
    """For how long to listen.

    Parameters
    ----------
    text
        As it was given.

    Raises
    ------
    ArgumentTypeError
        It is no number of seconds, or more than an hour.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_WAIT_S:
        raise argparse.ArgumentTypeError(
            f"{text!r}: seconds from 0 to {MOST_WAIT_S:.0f} are expected"
        )
    return seconds
