"""Measuring how a home is connected: its document, as planners take it, and what to say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.handle import Task
from potluck.profile import access_tree, declared_network
from potluck.profile.connection_hints import hints_of
from potluck.profile.home_network import HomeNetwork
from potluck.profile.link_probes import LinkProber, latency, measure_links
from potluck.profile.links import LinkLine
from potluck.profile.network import machines, network_of, stated_rate
from potluck.profile.network_rows import document_of
from potluck.records import HOME, Network
from potluck.sessions.link import SessionLink
from potluck_wire.machine_identity import machine_name

if TYPE_CHECKING:
    from potluck.profile.device_bench import Bench


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """What was found. `notes`: what to say of it; `contradictions`: those about which the owner
    should do something.
    """

    document: HomeNetwork
    network: Network
    notes: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()


def measure_network(
    bench: "Bench",
    link: SessionLink,
    task: Task,
    capabilities: Mapping[str, Mapping[str, Any]],
    known: HomeNetwork | None = None,
    home_host: str = "",
) -> MeasuredNetwork:
    """The network of these devices and home: within a machine, and where an uplink is paced, pair
    by pair; between machines as the media that they share.

    Parameters
    ----------
    bench
        Asks for single probes.
    link
        The home's connection.
    task
        Is asked between probes whether it was cancelled.
    capabilities
        Per device, its capability statement.
    known
        What the owner has declared; its structure is kept.
    home_host
        The notebook's machine, as agents there call it; default: this one.
    """
    home_host = home_host or machine_name()
    by_machine = machines(capabilities, home_host)
    speakers = {name: speaker for speaker, names in by_machine.items() for name in names}
    lines: dict[tuple[str, str], LinkLine] = {}
    waits_s: dict[tuple[str, str], tuple[float, ...]] = {}
    for pair in pairs_to_probe(tuple(capabilities)):
        source, target = (speakers.get(name, name) for name in pair)
        rate = stated_rate(capabilities.get(pair[0], {}))
        if rate or source == target or target not in by_machine:
            lines[pair] = bench.line(*pair, rate)
        elif (source, target) not in waits_s:
            waits_s[source, target] = bench.waits_s(source, target)
    if len(by_machine) == 1:
        by_pairs = network_of(capabilities, lines, home_host)
        return MeasuredNetwork(document=HomeNetwork(beside=by_pairs), network=by_pairs)
    medians_s = {pair: median(seconds) for pair, seconds in waits_s.items()}
    hints = hints_of(capabilities, by_machine)
    tomography = measure_links(
        [*by_machine], LinkProber(link, task).send, medians_s, bench.done, hints
    )
    alone = tomography.best.predicted([(pair,) for pair in waits_s])
    latencies_s = {
        pair: [latency(wait_s, rate) for wait_s in seconds]
        for (pair, seconds), (rate,) in zip(waits_s.items(), alone, strict=True)
    }
    if known is None:
        best = tomography.best
        rates = declared_network.figures(best, tomography.observations)
        document, notes = (
            document_of(best.tree, rates, latencies_s),
            access_tree.described(best.tree),
        )
        wrong: list[str] = []
    else:
        known = known.about(speakers)
        new = [name for name in by_machine if name not in known.devices]
        document, wrong = declared_network.fitted(known.joined_by(new), tomography, latencies_s)
        if new:
            wrong.append(
                f"The network that was declared does not name {', '.join(new)}: taken to be at a "
                f"port of its own. {declared_network.STEP}"
            )
        notes = wrong
    network = network_of(capabilities, lines, home_host, document.records)
    return MeasuredNetwork(
        document=replace(document, beside=network),
        network=network,
        notes=tuple(notes),
        contradictions=tuple(wrong),
    )


def pairs_to_probe(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Ordered pairs: everything that a device or home sends.

    Parameters
    ----------
    names
        Of devices.
    """
    return [
        (source, target)
        for source in (*names, HOME)
        for target in (*names, HOME)
        if source != target
    ]
