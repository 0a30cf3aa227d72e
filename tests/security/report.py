"""`python -m tests.security.report [--long] [ROW ...]` runs the tests of all rows, or of these, and
writes their figures into SECURITY.md.

What a test notes with `record_property` ("faults", "inputs") is added up by row.
"""

import re
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.security.rows import ROWS, proofs_of

TARGET = Path(__file__).parents[2] / "device_agent" / "SECURITY.md"
START, END = "<!-- rows: made by tests/security/report.py -->", "<!-- end of rows -->"
HEAD = (
    "| row | fault or attack | what is promised | test cases passed | failed | skipped | tried | "
    "not promised |\n"
    "|---|---|---|---|---|---|---|---|"
)
_LINE = re.compile(
    r"^\| ([A-Z]\d+) \|.*\| (\d+) \| (\d+) \| (\d+) \| ([\d,]+|-) \|[^|]*\|$", re.MULTILINE
)


@dataclass(frozen=True)
class Figures:
    """What was counted of one row: test cases, and the faults or inputs that they tried."""

    passed: int
    failed: int
    skipped: int
    tried: str


def table(figures: dict[str, Figures]) -> str:
    """The rows with these figures, as they stand in SECURITY.md."""
    lines = [HEAD]
    for name, row in ROWS.items():
        f = figures[name]
        cells = (
            name,
            row.fault,
            row.promise,
            f.passed,
            f.failed,
            f.skipped,
            f.tried,
            row.gap or "-",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def parse(text: str) -> dict[str, Figures]:
    """The figures that stand there."""
    return {
        name: Figures(int(passed), int(failed), int(skipped), tried)
        for name, passed, failed, skipped, tried in _LINE.findall(text)
    }


class Counting:
    """Counts how the cases of each of these tests end, and what they note."""

    def __init__(self, tests: Collection[str]) -> None:
        self.tests = frozenset(tests)
        self.ends: dict[str, Counter[str]] = {}
        self.tried: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of these files, these tests. Named one by one, those that are long and left out would be
        missed.
        """
        items[:] = [item for item in items if item.nodeid.split("[")[0] in self.tests]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each case."""
        test = report.nodeid.split("[")[0]
        if report.when == "call" or report.failed or (report.when == "setup" and report.skipped):
            self.ends.setdefault(test, Counter())[report.outcome] += 1
        if report.when == "call":
            self.tried[test] += sum(
                int(n) for what, n in report.user_properties if what in ("faults", "inputs")
            )


def measure(names: Collection[str], *, long: bool) -> dict[str, Figures]:
    """Run the tests of these rows once; ends the process where those of a row cannot run."""
    tests = {test for name in names for test in proofs_of(name)}
    counting = Counting(tests)
    files = sorted({test.partition("::")[0] for test in tests})
    code = pytest.main([*files, "-q", *(() if long else ("-m", "not long"))], plugins=[counting])
    found = {name: _figures(counting, proofs_of(name)) for name in names}
    untried = [name for name, figures in found.items() if not figures.passed + figures.failed]
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or untried:
        raise SystemExit(f"not written: pytest ended with {code!r}; no test of {untried} has run.")
    return found


def _figures(counting: Counting, tests: tuple[str, ...]) -> Figures:
    ends = sum((counting.ends.get(test, Counter()) for test in tests), Counter())
    tried = sum(counting.tried[test] for test in tests)
    return Figures(ends["passed"], ends["failed"], ends["skipped"], f"{tried:,}" if tried else "-")


def main(arguments: list[str]) -> None:
    """Measure and write."""
    names = [name for name in arguments if name != "--long"]
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}.")
    text = TARGET.read_text()
    figures = parse(text) | measure(names or ROWS, long="--long" in arguments)
    before, after = text[: text.index(START)], text[text.index(END) :]
    TARGET.write_text(f"{before}{START}\n{table(figures)}\n{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
