"""One row of SECURITY.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row: `tests` as FILE::TEST, all of them in `make test` unless they are marked long."""

    fault: str
    promise: str
    tests: tuple[str, ...]
    gap: str = ""


def tests_of(*rows: str) -> tuple[str, ...]:
    """`FOLDER/FILE:TEST TEST ...` as FILE::TEST."""
    found = []
    for row in rows:
        file, _, names = row.partition(":")
        found += [f"tests/{file}.py::{name}" for name in names.split()]
    return tuple(found)
