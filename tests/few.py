"""Which few of the cases of one test `make test` tries: each value that several of them share once,
as far as so many cases can have them, and beside these such as lie evenly among all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def few(cases: Sequence[Mapping[str, Any]], n: int) -> set[int]:
    """Positions of n of the cases, each given by its parameters; the same ones each time."""
    values = [{(name, _comparable(value)) for name, value in case.items()} for case in cases]
    n_with = Counter(value for each in values for value in each)
    missing = {value for value, count in n_with.items() if count > 1}
    even = [number * (len(cases) - 1) / max(1, n - 1) for number in range(min(n, len(cases)))]
    remaining, kept = {*range(len(cases))}, set[int]()

    def worth(i: int, at: float) -> tuple[int, float, int]:
        return len(values[i] & missing), -abs(i - at), -i

    for at in even:
        best = max(remaining, key=lambda i: worth(i, at))
        remaining.remove(best)
        kept.add(best)
        missing -= values[best]
    return kept


def _comparable(value: Any) -> Any:
    """Itself; what cannot be in a set is as good as unlike all others."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
