"""Texts of others, made harmless to show: in a terminal, a traceback or a page. Pure."""

import re
from collections.abc import Iterable

# What is drawn as nothing at all and yet is a letter or a mark to Unicode: fillers, joiners,
# variation selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def harmless(text: str) -> str:
    """The text with blanks for line breaks and the like, and a mark for what a reader cannot see.

    That is what a terminal would obey, what turns the direction of writing, what has no width, and
    halves of characters.

    >>> harmless("dev\\u202eice\\t1")
    'dev\\ufffdice 1'
    """
    if text.isprintable() and not _UNSEEN.search(text):
        return text
    return "".join([_shown(char) for char in text])


def quoted(text: str, max_chars: int = 80) -> str:
    """A name or a part of a message out of somebody else's file: harmless, and not long.

    >>> quoted("conv1"), quoted("a" * 100, max_chars=5)
    ('conv1', 'aaaaa...')
    """
    return harmless(text if len(text) <= max_chars else text[:max_chars] + "...")


def who_is_here(names: Iterable[str]) -> str:
    """A part of a sentence about those who are here.

    >>> who_is_here(()), who_is_here(["a"]), who_is_here("ab")
    ('here is nobody', 'here is a', 'here are a, b')
    """
    named = [*names]
    return f"here {'are' if len(named) > 1 else 'is'} {', '.join(named) or 'nobody'}"


def _shown(char: str) -> str:
    if char.isprintable() and not _UNSEEN.match(char):
        return char
    return " " if char.isspace() else "�"
