"""Where a figure of energy comes from. A sum is as good as its worst part, and says so. Pure.

`measured`: by a meter. `assumed`: by watts that somebody stated, printed or guessed. `simulated`:
of a device that is played. `unknown`: nobody knows. What is predicted has the mark of its watts.
"""

from collections.abc import Iterable

MEASURED = "measured"
ASSUMED = "assumed"
SIMULATED = "simulated"
UNKNOWN = "unknown"
MARKS = (MEASURED, ASSUMED, SIMULATED, UNKNOWN)  # from best to worst


def worst(marks: Iterable[str]) -> str:
    """The mark of a sum of parts with these marks; of no part at all, nothing is known.

    >>> worst(["measured", "assumed", "measured"]), worst([])
    ('assumed', 'unknown')
    """
    return max(marks, key=MARKS.index, default=UNKNOWN)


def reckoned(mark: str) -> str:
    """The mark of joules of what was run that no meter counted: the watts were at best assumed to
    be those of another time.
    """
    return worst((mark, ASSUMED))


def marked(figure: str, mark: str) -> str:
    """A figure with its mark, for people; no mark beside what is not known."""
    return figure if mark in ("", UNKNOWN) else f"{figure} {mark}"
