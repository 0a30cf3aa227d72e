"""One page about a run, to keep and to send: what was planned, what happened, and how far the two
are apart. Self-contained, and sorted by a click on a heading.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from potluck import units
from potluck.display import chart, html, markup, tables
from potluck.display.tables import Table
from potluck.errors import PotluckError
from potluck.planning import judge
from potluck.planning.registry import ask
from potluck.records import Plan
from potluck.run.history import History
from potluck.run.run import Run
from potluck.sanitized_text import harmless

STYLE = """<style>th{cursor:pointer}th[aria-sort]::after{content:" \\2195";opacity:.6}
th[aria-sort=ascending]::after{content:" \\2191"}th[aria-sort=descending]::after{content:" \\2193"}
svg{max-width:100%;height:auto}</style>"""
# Numbers by their value and unit, words by the alphabet; where scripts are off, nothing is missing.
SORTED = """<script>
const units={"µ":1e-6,n:1e-9,m:1e-3,k:1e3,K:1024,M:1e6,G:1e9};
const value=text=>{const m=/^\\s*([-+]?[\\d.]+(?:e[-+]?\\d+)?)\\s*([µnmkKMG]?)/.exec(text);
  return m?+m[1]*(units[m[2]]||1):NaN};
for(const head of document.querySelectorAll("table thead th")){
  const row=head.parentElement,body=head.closest("table").tBodies[0];
  const index=[...row.cells].indexOf(head);
  const sort=()=>{const up=head.getAttribute("aria-sort")!=="ascending";
    for(const other of row.cells)other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort",up?"ascending":"descending");
    const rows=[...body.rows].sort((a,b)=>{
      const[x,y]=[a,b].map(r=>r.cells[index]?.textContent??""),[v,w]=[value(x),value(y)];
      return(isNaN(v)||isNaN(w)?x.localeCompare(y):v-w)*(up?1:-1)});
    body.append(...rows)};
  head.tabIndex=0;head.addEventListener("click",sort);
  head.addEventListener("keydown",e=>{if(e.key==="Enter")sort()})}
</script>"""


def save(run: Run, path: str | Path) -> Path:
    """Write the report of this run as a page."""
    title = f"potluck: {run.plan.model}"
    return markup.save(path, title, STYLE, *fragments(run), SORTED)


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
    said = f"{run.plan.model}: {units.duration(median(recent))} a {noun}"
    predicted = run.predicted
    if predicted is not None and predicted.step_s:
        said += f", predicted {units.duration(median(predicted.step_s))}"
    here, *others = _baselines(run)
    alone = next((plan for plan in others if len(plan.devices) == 1), None)
    if alone is not None and alone.latency_s and here.latency_s and len(here.devices) > 1:
        times = alone.latency_s / here.latency_s
        said += f". By prediction {times:.2g} times as fast as {alone.devices[0]} alone, the best"
        if alone.energy_j and here.energy_j is not None:
            said += f", with {here.energy_j / alone.energy_j:.2g} times its joules"
    return harmless(said + ".")


def _baselines(run: Run) -> tuple[Plan, ...]:
    """The plan at work, and the best devices alone."""
    problem, here = run.problem, run.plan
    if problem is None:
        return (here,)
    found: tuple[Plan, ...] = ()
    with suppress(PotluckError):
        here = here if here.latency_s is not None else judge(problem, here)
        found = tuple(ask(problem, "single"))
    return (here, *(plan for plan in found if plan.stages != here.stages))


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
