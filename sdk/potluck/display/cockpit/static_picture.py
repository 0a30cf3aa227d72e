"""The cockpit as one picture that lasts: what a saved notebook shows of it. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from potluck import units
from potluck.display import chart, timeline
from potluck.display.cockpit.machine import CockpitMachine
from potluck.display.scene import Dot, Item, Line, Rect, Scene, Text, fitting
from potluck.provenance import MEASURED
from potluck.records import Plan
from potluck.run.history import History
from potluck.sanitized_text import harmless
from potluck.sessions.members import Member

WIDTH = 960.0
MARGIN = 16.0
GAP = 12.0
CARD_WIDTH, CARD_HEIGHT = 179.0, 76.0
PER_ROW = 5
MOST_CARDS = 20
MOST_EVENTS = 6
SHARE = 0.715  # of its size that a chart is drawn at, so that two stand side by side


def still(machine: CockpitMachine) -> Scene:
    """The state of now: who is there, the latest step, plans, losses and events."""
    items: list[Item] = [*_header(machine)]
    y = 58.0
    cards = [*_cards(machine, y)]
    items += cards
    n_rows = -(-min(MOST_CARDS, len(machine.observation.members)) // PER_ROW)
    y += n_rows * (CARD_HEIGHT + GAP) + 4
    if machine.latest is not None:
        both = [trace for trace in (machine.predicted, timeline.typical(machine.latest)) if trace]
        gantt = timeline.gantt(*both, width=WIDTH)
        items += moved(gantt.items, 0.0, y)
        y += gantt.height + 6
    charts = [*_charts(machine)]
    for place, scene in enumerate(charts):
        items += moved(scene.items, 8 + place * (WIDTH / 2), y, SHARE)
    y += charts[0].height * SHARE + 6 if charts else 0.0
    events = [*_events(machine, y)]
    items += events
    y += 18.0 * len(events) / 2
    return Scene(width=WIDTH, height=y + 12, title=words(machine), items=tuple(items))


def words(machine: CockpitMachine) -> str:
    """The state in a sentence."""
    observation, run = machine.observation, machine.observation.run
    n_devices = units.number(len(observation.members), "device")
    if run is None:
        return f"potluck cockpit: {n_devices}, nothing runs"
    noun = "step" if run.plan.training else "request"
    if run.is_imagined:
        planned = f"imagined, {units.duration(run.step_s[-1])} a {noun}"
        return f"potluck cockpit: {harmless(run.plan.model)} on {n_devices}, {planned}"
    pace = f", {units.duration(run.step_s[-1])} each" if run.step_s else ""
    state = f", ended: {harmless(run.ended)}" if run.ended else ""
    return (
        f"potluck cockpit: {harmless(run.plan.model)} on {n_devices}, "
        f"{units.number(run.n_done, noun)}{pace}{state}"
    )


def _header(machine: CockpitMachine) -> Iterable[Item]:
    yield Text(x=MARGIN, y=24, text=fitting(words(machine), WIDTH - 32, 15), size=15, bold=True)
    readings = [m.reading for m in machine.observation.members if m.reading and m.session]
    watts = units.power(sum(reading.watts for reading in readings))
    estimated = ", estimated" if any(reading.source != MEASURED for reading in readings) else ""
    facts = [f"{watts} in all{estimated}"] if readings else []
    if (run := machine.observation.run) is not None:
        facts.append(f"plan by {harmless(run.plan.planner)}")
    yield Text(x=MARGIN, y=44, text=", ".join(facts), size=12, fill="muted")


def _cards(machine: CockpitMachine, top: float) -> Iterable[Item]:
    members = machine.observation.members
    for place, member in enumerate(members[:MOST_CARDS]):
        x = MARGIN + place % PER_ROW * (CARD_WIDTH + 8)
        y = top + place // PER_ROW * (CARD_HEIGHT + GAP)
        yield from _card(machine, member, x, y)
    if len(members) > MOST_CARDS:
        more = f"and {len(members) - MOST_CARDS} more"
        yield Text(x=WIDTH - 16, y=top - 8, text=more, size=11, fill="muted", anchor="end")


def _card(machine: CockpitMachine, member: Member, x: float, y: float) -> Iterable[Item]:
    seen = machine.state.sections.get("devices", {}).get(member.name, {})
    n_layers = machine.observation.run.plan.stages[-1].stop if machine.observation.run else 0
    yield Rect(x=x, y=y, width=CARD_WIDTH, height=CARD_HEIGHT, fill="faint", radius=7)
    yield Dot(x=x + 13, y=y + 15, radius=4, fill="green" if seen.get("lit") else "grey")
    name = fitting(harmless(member.name), CARD_WIDTH - 36, 12)
    yield Text(x=x + 24, y=y + 15, text=name, size=12, bold=True)
    yield Rect(x=x + 10, y=y + 28, width=CARD_WIDTH - 20, height=8, fill="grid", radius=2)
    for start, stop in seen.get("layers", ()):
        part = (CARD_WIDTH - 20) / max(1, n_layers)
        left, width = x + 10 + start * part, (stop - start) * part
        yield Rect(x=left, y=y + 28, width=width, height=8, fill="blue", radius=2)
    readings = []
    if "watts" in seen:
        readings.append(units.power(seen["watts"]) + (" est." if seen["estimated"] else ""))
    if "battery" in seen:
        readings.append(f"battery {units.percent(seen['battery'])}")
    yield Text(x=x + 10, y=y + 48, text=", ".join(readings) or seen.get("status", ""), size=11)
    if "allowed" in seen:
        used = f"{units.size(seen['used'])} of " if "used" in seen else ""
        memory = f"{used}{units.size(seen['allowed'])}"
        yield Text(x=x + 10, y=y + 64, text=memory, size=10, fill="muted")


def _charts(machine: CockpitMachine) -> Iterable[Scene]:
    known = [p for p in machine.plans if p.latency_s is not None and p.energy_j is not None]
    current: Plan | None = machine.observation.run.plan if machine.observation.run else None
    if len(known) > 1:
        yield chart.pareto(
            known, current, "Plans, a ring where you are" if current in known else "Plans"
        )
    history = machine.observation.run.history if machine.observation.run else History()
    if len(history.losses) > 1:
        yield chart.loss({"loss": thinned(history.losses)})


def thinned(losses: tuple[float, ...], max_losses: int = 400) -> tuple[float, ...]:
    """At most so many of them, evenly."""
    return losses[:: max(1, len(losses) // max_losses)]


def _events(machine: CockpitMachine, y: float) -> Iterable[Item]:
    _, events = machine.state.events.since(machine.state.events.end - MOST_EVENTS)
    for place, event in enumerate(reversed(events)):
        at_y = y + 8 + 18 * place
        yield Text(x=MARGIN, y=at_y, text=units.duration(event["at"]), size=11, fill="muted")
        yield Text(x=MARGIN + 70, y=at_y, text=fitting(event["words"], WIDTH - 110, 11), size=11)


def moved(items: Iterable[Item], x: float, y: float, scale: float = 1.0) -> list[Item]:
    """The items elsewhere, and smaller."""
    return [_moved(item, x, y, scale) for item in items]


def _moved(item: Item, x: float, y: float, scale: float) -> Item:
    if isinstance(item, Line):
        points = tuple((a * scale + x, b * scale + y) for a, b in item.points)
        return replace(item, points=points, width=item.width * scale)
    x, y = item.x * scale + x, item.y * scale + y
    if isinstance(item, Rect):
        return replace(item, x=x, y=y, width=item.width * scale, height=item.height * scale)
    if isinstance(item, Dot):
        return replace(item, x=x, y=y, radius=item.radius * scale)
    return replace(item, x=x, y=y, size=max(9.0, item.size * scale))
