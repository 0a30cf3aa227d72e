"""One page about a run, to keep and to send: what was planned, what happened, and how far the two
are apart. Self-contained, and sorted by a click on a heading.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from potluck import units
from potluck.display import chart, html, markup, tables
from potluck.display import headline as headlines
from potluck.display.tables import Table
from potluck.errors import PotluckError
from potluck.planning import judge
from potluck.records import Plan
from potluck.run.history import History
from potluck.run.run import Run
from potluck.sanitized_text import harmless
from potluck.simulate.time_spans import pace_s, usual_s


def save(run: Run, path: str | Path) -> Path:
    """Write the report of this run as a page."""
    title = f"potluck: {run.plan.model}"
    return markup.save(path, title, *fragments(run))


def fragments(run: Run) -> Iterator[str]:
    """Its parts, the headline first."""
    yield markup.words(headline(run))
    history = run.history
    yield markup.heading("The plan")
    yield html.plan(run.plan, run.problem)
    plans = _baselines(run)
    if len(plans) > 1:
        yield html.plans(plans, plans[0])
    if run.measured:
        yield markup.heading("A step, predicted and measured" if run.plan.training else "A request")
        try:
            yield html.compared(run.compare())
            yield html.of_table("trace", tables.trace(run.trace))
        except PotluckError:  # nothing was predicted
            yield html.trace(run.trace)
    if history.losses:
        yield markup.heading("Learning")
        notes = tuple(dict.fromkeys(history.notes))
        yield html.history(history.losses, history.step_s, notes)
    if len(history.step_s) > 1:
        times = {"seconds of a step": history.step_s}
        yield html.picture(chart.loss(times, "Seconds of each step"))
    yield markup.heading("What happened")
    yield html.of_table("events", events(history))


def headline(run: Run) -> str:
    """How fast, against one device alone, and how good the prediction was."""
    recent = run.glance.recent_s
    noun = "step" if run.plan.training else "request"
    if not recent:
        return f"{run.plan.model}: no {noun} was measured yet."
    sentence = (
        f"{run.plan.model}: {units.duration(usual_s(recent, trains=run.plan.training))} a {noun}"
    )
    predicted = run.predicted
    if predicted is not None and predicted.step_s:
        sentence += f", predicted {units.duration(pace_s(predicted))}"
    current, *others = _baselines(run)
    alone = next((plan for plan in others if len(plan.devices) == 1), None)
    if alone is not None and alone.latency_s and current.latency_s and len(current.devices) > 1:
        sentence += f". By prediction {headlines.against(current, alone)}"
    return harmless(sentence + ".")


def _baselines(run: Run) -> tuple[Plan, ...]:
    """The plan at work, and the best devices alone."""
    problem, current = run.problem, run.plan
    if problem is None:
        return (current,)
    if current.latency_s is None:
        with suppress(PotluckError):
            current = judge(problem, current)
    others = headlines.alone(problem)
    return (current, *(plan for plan in others if plan.stages != current.stages))


def events(history: History) -> Table:
    """Losses, leaves, returns and decisions, by step."""
    happened = [
        *((r.step, "lost", r.words) for r in history.recoveries),
        *((d.step, "left", d.words) for d in history.departures),
        *((a.step, "back", a.words) for a in history.arrivals),
        *((d.step, d.action, d.words) for d in history.decisions),
    ]
    rows = tuple((str(step), kind, harmless(words)) for step, kind, words in sorted(happened))
    notes = () if rows else ("nothing but its steps",)
    return Table(title="Events", columns=(">step", "what", "how"), rows=rows, notes=notes)
