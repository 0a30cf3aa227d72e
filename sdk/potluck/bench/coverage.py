"""Which networks run as they are: architectures of transformers, made small by rule, each exported,
answered over two agents and trained for three steps, against one machine.

`exported_frac` is of those that torch.export itself exports for any number of rows. Equal means
within a tolerance: two agents sum in the order of their shares.
"""

import json
import logging
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.bench.architecture_trials import TrialOutcome, tried
from potluck.bench.harness import Result
from potluck.bench.time_limit import OutOfTime, within

if TYPE_CHECKING:
    from potluck.home import Home

# every: of all kinds of models in alphabetical order, each n-th; seconds: the longest for one;
# resume: those that the file of outcomes holds already are not tried again
SETTINGS: Mapping[str, float] = {"every": 12, "first": 0, "most": 1000, "seconds": 180, "resume": 0}
GOALS = {"exported_frac": (">=", 0.95), "equal_frac": (">=", 1.0), "trained_frac": (">=", 0.9)}
OUTCOMES = Path(tempfile.gettempdir()) / "potluck-coverage.jsonl"  # each as it comes


def run(settings: Mapping[str, float]) -> Result:
    """Try every n-th architecture; each outcome is appended to a file at once."""
    from potluck.bench import small_architectures

    chosen = small_architectures.names()[int(settings["first"]) :: int(settings["every"])]
    if not settings["resume"]:
        OUTCOMES.unlink(missing_ok=True)
    before = {outcome.name: outcome for outcome in _kept()}
    outcomes: list[TrialOutcome] = []
    with _quiet(), _Agents() as agents:
        for name in chosen:
            if sum(outcome.made for outcome in outcomes) >= settings["most"]:
                break
            if name not in before:
                before[name] = _tried(name, agents, settings["seconds"])
                _keep(before[name])
            outcomes.append(before[name])
    made = [outcome for outcome in outcomes if outcome.made]
    return Result(
        name="coverage",
        figures=figures(made) | {"not_made_small": len(outcomes) - len(made)},
        settings=settings,
        goals=GOALS,
        notes=(*notes(made), f"each outcome: {OUTCOMES}"),
    )


class _Agents:
    """Two agents of this machine, for one architecture after the other."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._home: Home | None = None

    def __enter__(self) -> "_Agents":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def home(self) -> "Home":
        """Their home; new ones where the last have ended."""
        from potluck.home import Home

        if self._home is None:
            self._home = self._open.enter_context(Home.local(2))
        return self._home

    def end(self) -> None:
        """End them, with whatever they are about."""
        self._home = None
        self._open.close()


def _tried(name: str, agents: _Agents, limit_s: float) -> TrialOutcome:
    from potluck.bench import small_architectures

    begun_s = time.perf_counter()
    try:
        with within(limit_s):
            architecture = small_architectures.made(name)
            if architecture is None:
                return TrialOutcome(name=name, made=False)
            return tried(architecture, agents.home)
    except OutOfTime:
        agents.end()
        return TrialOutcome(name=name, in_time=False, seconds=time.perf_counter() - begun_s)


def _keep(outcome: TrialOutcome) -> None:
    with OUTCOMES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def _kept() -> list[TrialOutcome]:
    """The outcomes that the file holds."""
    if not OUTCOMES.exists():
        return []
    lines = OUTCOMES.read_text(encoding="utf-8").splitlines()
    return [TrialOutcome(**json.loads(line)) for line in lines]


def figures(outcomes: list[TrialOutcome]) -> dict[str, float]:
    """Fractions of those that torch.export exports."""
    exports = [o for o in outcomes if o.exports]
    taken = [o for o in exports if not o.refused]
    n, n_taken = max(1, len(exports)), max(1, len(taken))
    return {
        "exported_frac": len(taken) / n,
        "equal_frac": sum(o.equal for o in taken) / n_taken,
        "trained_frac": sum(o.trained for o in exports) / n,
        "models": len(outcomes),
        "torch_exports": len(exports),
        "out_of_time": sum(not o.in_time for o in outcomes),
        "seconds_per_model": sum(o.seconds for o in outcomes) / max(1, len(outcomes)),
    }


def notes(outcomes: list[TrialOutcome]) -> tuple[str, ...]:
    """The refused ones by cause, the most frequent first."""
    causes: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for o in outcomes:
        cause = o.refused or (not o.equal and "differs") or o.untrained
        if o.exports and cause:
            causes[str(cause)] += 1
            names.setdefault(str(cause), []).append(o.name)
    return tuple(f"{n} x {cause} ({', '.join(names[cause])})" for cause, n in causes.most_common())


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers and torch warn of what a small configuration makes odd."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
