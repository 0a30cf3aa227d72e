"""A profile that learns from a run: its layers take what the run showed. Pure.

The rule: the median time of every piece of the model that a device ran, forward or backward, is
compared with its prediction (which knows who shared the processor). The seconds of the piece's
layers, at every batch size, go half of the way there (`correction_factors.half_way`). A layer that
several pieces held takes their median. Links learn by the rule of `links_from_runs`,
watts by that of `power_from_runs`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median

from potluck.profile.correction_factors import half_way
from potluck.profile.links_from_runs import Flow, factors_of, learned_rows, slowed
from potluck.profile.power_from_runs import learned_power
from potluck.profile.profiles import Profile
from potluck.records import LayerCost, Trace
from potluck.schedule import Compiled

Piece = tuple[str, str, int, int, int]  # device, operation, layers [start, stop), rows


def learned(
    profile: Profile,
    predicted: Trace,
    measured: Trace,
    compiled: Compiled,
    *,
    training: bool,
    steady: Collection[str] = (),
    transfers: Mapping[Flow, tuple[float, float]] | None = None,
) -> Profile:
    """The profile after a run of `compiled`.

    Devices in `steady` last as long as their profile says: no news.

    Parameters
    ----------
    profile
        Before the run.
    predicted
        What it predicted.
    measured
        What the run did.
    compiled
        The programs that both followed.
    training
        The run trains.
    steady
        Emulated devices.
    transfers
        Per ordered pair of devices: the seconds that a value was predicted to take, and took.
    """
    profile = replace(profile, devices=learned_power(profile.devices, measured))
    profile = _with_links(profile, transfers or {})
    ratios: dict[tuple[str, str, int], list[float]] = {}
    expected = piece_seconds(predicted, compiled)
    for piece, seconds in piece_seconds(measured, compiled).items():
        device, op, start, stop, _ = piece
        if device in steady or expected.get(piece, 0.0) <= 0 or seconds <= 0:
            continue
        for layer in range(start, stop):
            ratios.setdefault((device, op, layer), []).append(seconds / expected[piece])
    factors = half_way(ratios)
    known = profile.training if training else profile.inference
    if known is None or not factors:
        return profile
    costs = {
        device: tuple(_changed(cost, factors, device, layer) for layer, cost in enumerate(layers))
        for device, layers in known.costs.items()
    }
    refined = replace(known, costs=costs)
    return replace(profile, training=refined) if training else replace(profile, inference=refined)


def _with_links(profile: Profile, transfers: Mapping[Flow, tuple[float, float]]) -> Profile:
    factors = factors_of(profile.network, transfers)
    if not factors:
        return profile
    document = None if profile.document is None else learned_rows(profile.document, factors)
    return replace(profile, network=slowed(profile.network, factors), document=document)


# operation -> what its seconds are counted as
_LEARNED_FROM = {
    "run": "run",
    "backward": "backward",
    "backward_input": "backward",
    "backward_weight": "backward",
}


def piece_seconds(trace: Trace, compiled: Compiled) -> dict[Piece, float]:
    """The median seconds of every piece that was run; of a backward in two parts, of both."""
    found: dict[tuple[Piece, str], list[float]] = {}
    for event in trace.events:
        if event.op in _LEARNED_FROM:
            note = compiled.notes[event.device][event.instruction]
            piece = event.device, _LEARNED_FROM[event.op], note.start, note.stop, note.rows
            found.setdefault((piece, event.op), []).append(event.stop_s - event.start_s)
    totals = dict[Piece, float]()
    for (piece, _), seconds in found.items():
        totals[piece] = totals.get(piece, 0.0) + median(seconds)
    return totals


def _changed(
    cost: LayerCost, factors: Mapping[tuple[str, str, int], float], device: str, layer: int
) -> LayerCost:
    forward, backward = (factors.get((device, op, layer), 1.0) for op in ("run", "backward"))
    return replace(
        cost,
        forward_s=tuple(seconds * forward for seconds in cost.forward_s),
        backward_s=tuple(seconds * backward for seconds in cost.backward_s),
    )
