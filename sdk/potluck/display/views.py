"""The view of every kind of value: which tables and pictures show it, as HTML and as text."""

from functools import singledispatch
from pathlib import Path
from typing import Any

from potluck.coordinator.detached_run import DetachedRun
from potluck.display import (
    chart,
    detached_table,
    html,
    markup,
    network_views,
    offload_views,
    power_views,
    record_pictures,
    serving_views,
    text,
    what_if_views,
)
from potluck.graph.model import Model
from potluck.home import Home
from potluck.offload.accelerated import AcceleratedModel
from potluck.offload.explanation import RequestExplanation
from potluck.offload.stats import Stats
from potluck.offload.what_if import OffloadWhatIf
from potluck.planning.explain import Explanation
from potluck.planning.plans import Plans
from potluck.profile.home_network import HomeNetwork
from potluck.profile.profiles import Profile
from potluck.records import Plan, Problem, Trace
from potluck.run.comparison import Comparison
from potluck.run.history import History
from potluck.run.run import Run
from potluck.serve.runtime.service import Service
from potluck.serve.runtime.services import Services
from potluck.sessions.members import Member, Members
from potluck.sessions.readings import Readings


@singledispatch
def as_html(value: Any) -> str:
    """A fragment for a notebook."""
    raise TypeError(f"nothing shows a {type(value).__name__}")


@singledispatch
def as_text(value: Any) -> str:
    """Text for a terminal."""
    raise TypeError(f"nothing shows a {type(value).__name__}")


@singledispatch
def _picture(value: Any) -> Any:
    raise TypeError(f"there is no picture of a {type(value).__name__}")


def save(value: Any, path: str | Path) -> Path:
    """The picture of a value as a file: .png, .svg, or a page with its table."""
    return html.save_picture(path, _picture(value), as_html(value))


as_html.register(Problem, html.profile)
as_html.register(Trace, html.trace)
as_html.register(Explanation, html.explanation)
as_html.register(Comparison, html.compared)
as_text.register(Explanation, text.explanation)
as_text.register(Comparison, text.compared)
_picture.register(RequestExplanation, offload_views.picture)
_picture.register(OffloadWhatIf, what_if_views.chart)


@as_html.register
def _(plan: Plan) -> str:
    return html.plan(plan, plan.problem)


@as_html.register
def _(plans: Plans) -> str:
    return html.plans(plans.items, plans.best)


@as_html.register
def _(profile: Profile) -> str:
    return html.profile(profile.largest(), profile.notes)


@as_html.register
def _(network: HomeNetwork) -> str:
    return html.below("network", network_views.picture(network), network_views.table(network))


@as_text.register
def _(network: HomeNetwork) -> str:
    return text.render(network_views.table(network))


@as_html.register
def _(model: Model) -> str:
    return html.layers(model.layers(model.trains), repr(model).strip("<>"))


@as_html.register
def _(member: Member) -> str:
    return html.members([member], member.name)


@as_html.register
def _(members: Members) -> str:
    return html.members(members.values())


@as_html.register
def _(home: Home) -> str:
    return markup.words(repr(home)) if home.closed else as_html(home.devices)


@as_html.register
def _(readings: Readings) -> str:
    content = power_views.table(readings.history, readings.faults)
    return html.below("readings", power_views.chart(readings.history), content)


@as_text.register
def _(readings: Readings) -> str:
    return text.render(power_views.table(readings.history, readings.faults))


@as_html.register
def _(history: History) -> str:
    return html.history(history.losses, history.step_s, tuple(dict.fromkeys(history.notes)))


@as_html.register
def _(run: Run) -> str:
    measured = [html.trace(run.trace, run.predicted)] if run.measured else []
    return "".join([html.plan(run.plan, run.problem), *measured])


@as_html.register
def _(run: DetachedRun) -> str:
    losses = run.losses
    content = detached_table.detached(
        run.job, run.state, run.step, run.n_steps, losses, run.notes, run.why
    )
    if len(losses) < 2:
        return html.of_table("detached", content)
    return html.below("detached", chart.loss({"loss": losses}), content)


@as_html.register
def _(stats: Stats) -> str:
    content = offload_views.stats(stats)
    if stats.requests < 2:
        return html.of_table("stats", content)
    return html.below("stats", offload_views.over_time(stats), content)


@as_text.register
def _(stats: Stats) -> str:
    return text.render(offload_views.stats(stats))


@as_html.register
def _(account: RequestExplanation) -> str:
    content = offload_views.divided(account)
    return html.below("account", offload_views.picture(account), content)


@as_text.register
def _(account: RequestExplanation) -> str:
    return text.render(offload_views.divided(account))


@as_html.register
def _(fast: AcceleratedModel) -> str:
    account = fast.explain()
    content = offload_views.at_work(account, fast.stats, fast.state)
    return html.below("fast", offload_views.rows(account), content)


@as_text.register
def _(fast: AcceleratedModel) -> str:
    return text.render(offload_views.at_work(fast.explain(), fast.stats, fast.state))


@as_html.register
def _(what_if: OffloadWhatIf) -> str:
    content = what_if_views.table(what_if)
    return html.below("what-if", what_if_views.chart(what_if), content)


@as_text.register
def _(what_if: OffloadWhatIf) -> str:
    return text.render(what_if_views.table(what_if))


@as_html.register
def _(services: Services) -> str:
    content = serving_views.table(services)
    return html.below("services", record_pictures.services(services), content)


@as_text.register
def _(services: Services) -> str:
    return text.render(serving_views.table(services))


@as_html.register
def _(service: Service) -> str:
    only = {service.name: service}
    return html.below("service", record_pictures.services(only), serving_views.table(only))
