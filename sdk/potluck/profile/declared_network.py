"""A network that the owner declared, against what was measured: its structure is kept, rates are
fitted to it, and what contradicts measurements is said. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, log

from potluck import units
from potluck.profile.access_tree import BOTH, Attachment, Flow
from potluck.profile.home_network import (
    DECLARED,
    MEASURED,
    SHARED,
    SWITCH,
    Figure,
    HomeNetwork,
    SharedMedium,
)
from potluck.profile.network_rows import attachments_of, rates_of, timed, tree_of
from potluck.profile.tomography import NOISE_FRAC, Observation, Tomography, TreeFit

SURE = 4.0  # standard errors; what is further off is no noise
CLEARLY = 16.0  # of a sum of squared errors, in standard deviations
MOST_OF_NAME = 100  # of a row, of which each device gets one
MAX_FLOWS = 3  # flows, the worst of them
STEP = (
    "Correct home.network (or network.toml beside the keys) and give it back: "
    "home.profile(model, network=...); is_declared = false measures it anew."
)


def fitted(
    declared: HomeNetwork, tomography: Tomography, waits_s: Mapping[Flow, Sequence[float]]
) -> tuple[HomeNetwork, list[str]]:
    """The declared document with the rates that explain what was measured best, and in words what
    contradicts it.

    Parameters
    ----------
    declared
        What the owner says; every device that was measured is in it.
    tomography
        What was measured.
    waits_s
        Per ordered pair, what small messages took.
    """
    declared = declared.joined_by(declared.devices)
    fit = tomography.fitted(tree_of(declared))
    known, found = rates_of(declared), figures(fit, tomography.observations)
    contradictions = [*_of_rates(known, found)]
    if fit.misfit > tomography.best.misfit + CLEARLY:  # else no other structure explains more
        contradictions += _of_flows(fit, tomography.observations)
    kept = {
        one: known[one]
        if one in known and figure.error_frac == inf and known[one].value >= figure.value
        else figure
        for one, figure in found.items()
    }
    rows = tuple(row for one in declared.media for row in _refitted(one, declared.media, kept))
    document = timed(replace(declared, media=rows), waits_s)
    return document, [f"{line} {STEP}" for line in contradictions]


def figures(fit: TreeFit, observations: Sequence[Observation]) -> dict[Attachment, Figure]:
    """The rates of a fit with their errors.

    Parameters
    ----------
    fit
        A tree with rates.
    observations
        That it was fitted to.
    """
    errors = fit.error_fracs(observations)
    return {
        one: Figure(value=rate, error_frac=errors[one], source=MEASURED)
        for one, rate in fit.rates.items()
    }


def _of_rates(
    known: Mapping[Attachment, Figure], found: Mapping[Attachment, Figure]
) -> Iterator[str]:
    for (key, way), figure in known.items():
        measured = found.get((key, way))
        if figure.source != DECLARED or measured is None:
            continue
        is_least = measured.error_frac == inf
        error = SURE * (
            (figure.error_frac or 0.0) + (NOISE_FRAC if is_least else measured.error_frac or 0.0)
        )
        apart = log(measured.value / figure.value)
        if apart > error or (apart < -error and not is_least):
            which = "" if way == BOTH else f" ({way})"
            yield (
                f"The network that was declared gives {', '.join(sorted(key))}{which} "
                f"{units.rate(figure.value)}; measured is {'at least ' * is_least}"
                f"{units.rate(measured.value)}, which plans use."
            )


def _of_flows(fit: TreeFit, observations: Sequence[Observation]) -> Iterator[str]:
    """The flows that the structure cannot explain, the worst first."""
    predicted = fit.predicted([observation.flows for observation in observations])
    off = [
        (abs(log(seen / expected)), flow, seen, expected, observation.flows)
        for observation, rates in zip(observations, predicted, strict=True)
        for flow, seen, expected in zip(
            observation.flows, observation.bytes_per_s, rates, strict=True
        )
    ]
    for _, (source, target), seen, expected, flows in sorted(off, reverse=True)[:MAX_FLOWS]:
        if abs(log(seen / expected)) <= SURE * NOISE_FRAC:
            return
        others = [f"{a} to {b}" for a, b in flows if (a, b) != (source, target)]
        at_once = f" beside {', '.join(others)}" if others else ""
        yield (
            f"The network that was declared cannot explain what was measured: {source} to {target}"
            f"{at_once} had {units.rate(seen)}, it gives {units.rate(expected)}."
        )


def _refitted(
    row: SharedMedium, rows: Sequence[SharedMedium], rates: Mapping[Attachment, Figure]
) -> Iterator[SharedMedium]:
    """The row with these rates; a row of several ports becomes one for each."""
    own = {one: rates[one] for one in attachments_of(row, rows) if one in rates}
    if row.kind in SHARED and not own:  # all of its stations are uplinks
        yield row
    elif row.kind in SHARED:
        quickest = max(own.values(), key=lambda figure: figure.value)
        stations = {
            name: figure
            for (key, _), figure in own.items()
            for name in key
            if len(key) == 1 and figure != quickest
        }
        yield replace(row, up_bytes_per_s=quickest, stations=stations)
    elif row.kind == SWITCH and len(row.devices) > 1:
        for name in row.devices:
            one = replace(row, name=f"{row.name[:MOST_OF_NAME]}: {name}", devices=(name,))
            yield from _refitted(one, rows, rates)
    else:
        found = list(own.values())
        down = found[1] if len(found) > 1 else None
        yield replace(row, up_bytes_per_s=found[0], down_bytes_per_s=down)
