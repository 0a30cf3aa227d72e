"""Which links share, inferred from simulated measurements with noise, on random homes; and what a
plan made by the inferred network costs on the true one.

Each home is drawn by its seed: three to eight devices and the notebook, wired as one of `WIRINGS`,
with rates over an order of magnitude. A flow's rate is that of the truth times noise, lognormal.
Nothing is told to the estimator but the names.

A medium of the truth that flows share is found when flows over it are predicted to slow each other
down as they do: of all pairs of flows at once that it limits, the rates are right within `RIGHT` in
nine of ten. (What no measurement can tell apart is the same: two wired devices behind an access
point, and an air that one crossing fills.) A plan's regret is how much longer it takes, simulated
on the true network, than the plan that was made by the true network.

Where this machine may (Linux, root), some homes are also played in network namespaces and measured
as real ones are; `probe_s` is the slowest of them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import exp
from statistics import median, quantiles

import numpy as np

from potluck.bench.harness import Result
from potluck.bench.large_homes import LargeHome
from potluck.bench.namespaced_homes import outcomes
from potluck.lab.namespaces import missing
from potluck.planning import make_plans
from potluck.planning.evaluate import judge
from potluck.profile.access_tree import (
    AIR,
    BOTH,
    BUS,
    PORT,
    UP,
    Attachment,
    Block,
    Flow,
    Site,
    attachments,
    crossings,
    key_of,
    network,
    ports,
    sites,
)
from potluck.profile.flow_model import FlowModel
from potluck.profile.tomography import Observation, Tomography, first_probes, most_probes
from potluck.records import HOME

SETTINGS: Mapping[str, float] = {
    "homes": 50,
    "noise_frac": 0.1,
    "seed": 1,
    "plans": 1,
    "namespaces": 6,
}
GOALS = {
    "media_found_frac": (">=", 0.95),
    "plan_regret_frac_median": ("<=", 0.02),
    "namespaces_media_found_frac": (">=", 0.95),
    "probe_s": ("<=", 20.0),
}
WIRINGS = (
    "wifi",
    "switch",
    "wifi and cables",
    "two channels",
    "powerline",
    "far site",
    "switch behind wifi",
    "tethered",
)
RIGHT = 0.25  # of a rate
LATENCY_S = 2e-3
CABLES = (11.7e6, 117e6)  # bytes per second: 100 Mbit/s and 1 Gbit/s
Rates = Mapping[Attachment, float]


def run(settings: Mapping[str, float]) -> Result:
    """How many media are found, how right the rates are, and what it costs plans."""
    found = list[bool]()
    errors = list[float]()
    regrets = list[float]()
    shares = list[float]()
    for number in range(int(settings["homes"])):
        rng = random.Random(f"{settings['seed']}/{number}")
        wiring = WIRINGS[number % len(WIRINGS)]
        names, tree, rates = drawn(rng, wiring)
        tomography = Tomography([*names, HOME], settings["noise_frac"], seed=number)
        while flows := tomography.next_probe():
            tomography.add(measured(tree, rates, flows, rng, settings["noise_frac"]))
        best, n_first = tomography.best, len(first_probes(tomography.names))
        n_probes = len(tomography.observations) - n_first
        shares.append(n_probes / most_probes(len(tomography.names)))
        of_media = list(errors_by_medium(names, tree, rates, best.tree, best.rates))
        found += [_share(each, RIGHT) >= 0.9 for each in of_media]
        errors += [error for each in of_media for error in each]
        if settings["plans"]:
            regrets.append(regret(number, names, (tree, rates), (best.tree, best.rates)))
    figures = {
        "media_found_frac": sum(found) / len(found),
        "n_media": len(found),
        "rate_error_frac_median": median(errors),
        "rate_error_frac_p95": quantiles(errors, n=20)[-1],
        "probes_of_n_log_n_frac_max": max(shares),
    }
    if regrets:
        figures["plan_regret_frac_median"] = median(regrets)
        figures["plan_regret_frac_worst"] = max(regrets)
    played, notes = in_namespaces(int(settings["namespaces"]))
    figures |= played
    return Result(
        name="tomography",
        figures=figures,
        settings=dict(settings),
        goals={key: goal for key, goal in GOALS.items() if key in figures},
        notes=notes,
    )


def in_namespaces(n: int) -> tuple[dict[str, float], tuple[str, ...]]:
    """The figures of so many homes in network namespaces, and why they are missing."""
    reason = missing()
    if reason and n:
        return {}, (f"no homes in namespaces: {reason}",)
    played = list(outcomes(n))
    errors = [of_medium for outcome in played for of_medium in outcome.errors]
    if not errors:
        return {}, ()
    found = [_share(list(each), RIGHT) >= 0.9 for each in errors]
    return {
        "namespaces_media_found_frac": sum(found) / len(found),
        "namespaces_n_media": len(found),
        "namespaces_rate_error_frac_median": median(error for each in errors for error in each),
        "probe_s": max(outcome.probe_s for outcome in played),
    }, ()


def drawn(rng: random.Random, wiring: str) -> tuple[list[str], Site, Rates]:
    """Names, the tree and its rates of one home."""
    names = [f"d{i}" for i in range(rng.randint(3, 8))]
    everybody = [*names, HOME]
    rng.shuffle(everybody)
    tree = _tree(wiring, everybody, rng)
    air, rates = 10 ** rng.uniform(6.5, 7.8), dict[Attachment, float]()
    for site in sites(tree):
        for block in site.blocks:
            cable = rng.choice(CABLES)
            uplink = 10 ** rng.uniform(5.3, 6.5)
            for key, way in attachments(Site((block,))):
                if not any(key == key_of(node) for node in block.nodes):
                    continue  # within a site of it, and drawn there
                if way == BOTH:
                    slower = rng.choice((1, 1, 1, 2)) if block.kind == AIR else 1
                    rates[key, way] = air / slower
                elif len(key) > 1:
                    rates[key, way] = uplink * (1 if way == UP else rng.choice((1, 4)))
                else:
                    rates[key, way] = cable
    return names, tree, rates


def measured(
    tree: Site, rates: Rates, flows: tuple[Flow, ...], rng: random.Random, noise_frac: float
) -> Observation:
    """What these flows at once are seen to have."""
    true = _rates(tree, rates, [flows])[0]
    return Observation(
        flows=flows, bytes_per_s=tuple(rate * exp(rng.gauss(0, noise_frac)) for rate in true)
    )


def errors_by_medium(
    names: list[str], tree: Site, rates: Rates, guess: Site, guessed: Rates
) -> Iterator[list[float]]:
    """Per medium that flows share in truth: the errors, as parts, of the rates of all pairs of
    flows at once that it limits both.
    """
    everybody = [*names, HOME]
    flows = [(a, b) for a in everybody for b in everybody if a != b]
    alone_s = [r[0] for r in _rates(tree, rates, [(flow,) for flow in flows])]
    alone = dict(zip(flows, alone_s, strict=True))
    over: dict[frozenset[str] | Attachment, list[Flow]] = {}
    for flow in flows:
        for medium, _ in crossings(tree, flow):
            over.setdefault(medium, []).append(flow)
    for medium, sharing in over.items():
        if isinstance(medium, tuple) and len(medium[0]) == 1 and medium[1] != BOTH:
            continue  # one device's own port
        pairs = list(combinations(sharing, 2))
        true = _rates(tree, rates, pairs)
        slowed = [
            (pair, true_rates)
            for pair, true_rates in zip(pairs, true, strict=True)
            if all(rate < 0.95 * alone[flow] for flow, rate in zip(pair, true_rates, strict=True))
        ]
        if slowed:
            believed = _rates(guess, guessed, [pair for pair, _ in slowed])
            yield [
                abs(b / a - 1)
                for (_, true_rates), guessed_rates in zip(slowed, believed, strict=True)
                for a, b in zip(true_rates, guessed_rates, strict=True)
            ]


def regret(
    number: int, names: list[str], truth: tuple[Site, Rates], guess: tuple[Site, Rates]
) -> float:
    """What planning by the guess costs, as a part of the time of the plan by the truth."""
    problem = LargeHome(len(names), "mixed", "switch", "training", number).problem()
    everybody = [*names, HOME]
    latency_s = {(a, b): LATENCY_S for a in everybody for b in everybody if a != b}
    true, believed = (
        replace(problem, network=network(*of, latency_s, everybody)) for of in (truth, guess)
    )
    best, ours = make_plans(true).best, make_plans(believed).best
    return (judge(true, ours).latency_s or 0.0) / (best.latency_s or 1.0) - 1


def _tree(wiring: str, names: list[str], rng: random.Random) -> Site:
    half = rng.randint(2, max(2, len(names) - 2))
    some, others = tuple(names[:half]), tuple(names[half:])
    match wiring:
        case "wifi":
            return Site((Block(AIR, tuple(names)),))
        case "switch":
            return ports(names)
        case "two channels":
            return Site((Block(AIR, some), Block(AIR, others)))
        case "far site":
            return Site((*ports(others).blocks, Block(PORT, (ports(some),))))
        case "switch behind wifi":
            return Site((Block(AIR, (ports(some), *others)),))
        case "tethered":
            return Site((Block(AIR, (ports(names[:2]), *names[2:])),))
    shared = Block(BUS if wiring == "powerline" else AIR, some)
    return Site((shared, *ports(others).blocks))


def _rates(tree: Site, rates: Rates, probes: Sequence[Sequence[Flow]]) -> list[list[float]]:
    model = FlowModel(tree, probes)
    found = model.rates(np.log([[rates[one] for one in model.attachments]]))[0].tolist()
    return [[found.pop(0) for _ in probe] for probe in probes]


def _share(errors: list[float], limit: float) -> float:
    return sum(error <= limit for error in errors) / len(errors)
