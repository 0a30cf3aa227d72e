"""Share one request inside its operators between a device and a helper: which rows where (Intra-DP's LOSS, IV-C).

The paper searches intervals per operator by differential evolution. Here a Pareto label (device ready, helper ready,
link free, joules) is kept per joint and division of its rows on a grid, unless another is better in everything; of many
the ones that are ready first. Then the divisions move row by row while that helps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from potluck.errors import PlanError

from .sharing import LEVELS, Division, Shares, Sharing

MAX_LABELS = 8  # kept per joint and division: the ones that are ready first


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The answer: divisions from the input to the end, with predicted seconds, joules of the device and bytes sent."""

    divisions: tuple[Division, ...]
    latency_s: float
    energy_j: float
    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class Label:
    """When each side is ready behind a joint, when the link is free, and what the device has spent so far."""

    device_s: float
    helper_s: float
    free_s: float
    spent_j: float
    sent: int
    received: int
    division: Division
    before: "Label | None"


def step(shares: Shares, label: Label, to: Division, limit_s: float = float("inf")) -> Label | None:
    """From one division to the next: what is missing is sent, then both compute. None where it cannot be done."""
    sharing, at = shares.sharing, label.division
    device = shares.side(at.joint, to.joint, (0, to.device), helper=False)
    count = sharing.operators[to.joint].count
    helper = shares.side(at.joint, to.joint, (to.helper, count), helper=True)
    row_bytes = sharing.operators[at.joint].row_bytes
    up = max(min(at.helper, helper.stop) - helper.start, 0) * row_bytes if helper.stop > helper.start else 0
    down = max(device.stop - max(at.device, device.start), 0) * row_bytes if device.stop > device.start else 0
    if (up or down) and sharing.bytes_per_s <= 0:
        return None
    device_s, helper_s, free_s, spent_j = label.device_s, label.helper_s, label.free_s, label.spent_j
    if up:
        airtime_s = up / sharing.bytes_per_s
        begins_s = max(device_s, free_s)
        free_s = begins_s + airtime_s
        helper_s = helper.done_s(helper_s, begins_s + sharing.latency_s, airtime_s)
        spent_j += airtime_s * sharing.radio_w
    else:
        helper_s += helper.seconds
    if down:
        airtime_s = down / sharing.bytes_per_s
        begins_s = max(label.helper_s, free_s)
        free_s = begins_s + airtime_s
        device_s = device.done_s(device_s, begins_s + sharing.latency_s, airtime_s)
        spent_j += airtime_s * sharing.radio_w
    else:
        device_s += device.seconds
    if device_s > limit_s or helper_s > limit_s:
        return None
    spent_j += device.seconds * max(sharing.busy_w - sharing.idle_w, 0.0)
    return Label(
        device_s, helper_s, free_s, spent_j, label.sent + up, label.received + down, to, label
    )  # fmt: skip


def share(sharing: Sharing | Shares, *, deadline_s: float | None = None, levels: int = LEVELS) -> Split:
    """The split with the least latency; with `deadline_s`, the one with the least joules of the device within it.

    Intra-DP, equations (2) and (3), on rows instead of operations; the input and the result are on the device.

    Raises
    ------
    PlanError
        Where no split is done by the deadline; says how soon the fastest is.
    """
    shares = sharing if isinstance(sharing, Shares) else Shares(sharing)
    fastest: Split = _polished(shares, _search(shares, levels, None), None)
    if deadline_s is None:
        return fastest
    if fastest.latency_s > deadline_s:
        raise PlanError(
            f"no split answers within {deadline_s * 1e3:.1f} ms; the fastest takes {fastest.latency_s * 1e3:.1f} ms.",
            next_step="Allow more time, or use a faster helper or link.",
        )
    thrifty = _search(shares, levels, deadline_s)
    if thrifty is None:
        return fastest
    thrifty = _polished(shares, thrifty, deadline_s)
    return fastest if _rank(fastest, deadline_s) <= _rank(thrifty, deadline_s) else thrifty


def front(sharing: Sharing | Shares, n: int = 8) -> tuple[Split, ...]:
    """Splits of which none is both faster and more frugal: from the fastest to the one with the fewest joules."""
    shares = sharing if isinstance(sharing, Shares) else Shares(sharing)
    fastest, alone = share(shares), evaluate(shares, alone_on_device(shares))
    slowest_s = max(alone.latency_s, 2 * fastest.latency_s)
    limits = (fastest.latency_s + (slowest_s - fastest.latency_s) * k / (n - 1) for k in range(n))
    found: list[Split] = []
    for split in (fastest, *(share(shares, deadline_s=limit) for limit in limits)):
        if not found or split.energy_j < found[-1].energy_j * (1 - 1e-9):
            found.append(split)
    return tuple(found)


def alone_on_device(shares: Shares) -> tuple[Division, ...]:
    """Everything on the device."""
    count = shares.sharing.operators
    return tuple(Division(j, count[j].count, count[j].count) for j in (shares.joints[0], shares.joints[-1]))


def evaluate(shares: Shares, divisions: Sequence[Division]) -> Split:
    """The split of these divisions. Raises PlanError where the link is too slow to carry anything."""
    split = _walk(shares, divisions)
    if split is None:
        raise PlanError("this split sends something, but the link carries nothing.")
    return split


def _walk(shares: Shares, divisions: Sequence[Division]) -> Split | None:
    label: Label | None = _start(shares)
    for division in divisions[1:]:
        label = step(shares, label, division) if label else None
    return _split(shares, label) if label else None


def _start(shares: Shares) -> Label:
    count = shares.sharing.operators[0].count
    return Label(0.0, 0.0, 0.0, 0.0, 0, 0, Division(0, count, count), None)


def _split(shares: Shares, label: Label) -> Split:
    path: list[Division] = []
    at: Label | None = label
    while at:
        path.append(at.division)
        at = at.before
    energy_j = label.spent_j + shares.sharing.idle_w * label.device_s
    return Split(
        divisions=tuple(reversed(path)),
        latency_s=label.device_s,
        energy_j=energy_j,
        sent_bytes=label.sent,
        received_bytes=label.received,
    )


def _search(shares: Shares, levels: int, deadline_s: float | None) -> Split | None:
    """The best path over all joints and divisions on the grid."""
    limit_s = deadline_s if deadline_s is not None else evaluate(shares, alone_on_device(shares)).latency_s * (1 + 1e-9)
    limit_j, idle_w = float("inf"), shares.sharing.idle_w
    last = shares.joints[-1]
    whole = shares.sharing.operators[last].count
    divisions = {j: shares.divisions(j, levels) for j in shares.joints[:-1]}
    divisions[last] = (Division(last, whole, whole),)
    fronts: dict[Division, list[Label]] = {_start(shares).division: [_start(shares)]}
    best: Label | None = None
    for i, joint in enumerate(shares.joints[:-1]):
        here = [
            label for d in ((_start(shares).division,) if not i else divisions[joint]) for label in fronts.pop(d, [])
        ]
        for label in _thinned(here, energy=deadline_s is not None):
            soonest_s = shares.soonest_s(joint, label.device_s, label.helper_s)
            if soonest_s >= limit_s or label.spent_j + idle_w * soonest_s >= limit_j:
                continue
            for to in (to for target in reversed(shares.joints[i + 1 :]) for to in divisions[target]):
                found = step(shares, label, to, limit_s)
                if found is None:
                    continue
                if to.joint != last:
                    fronts.setdefault(to, []).append(found)
                elif best is None or _worth(shares, found, deadline_s) < _worth(shares, best, deadline_s):
                    best = found
                    if deadline_s is None:
                        limit_s = found.device_s
                    else:
                        limit_j = found.spent_j + idle_w * found.device_s
    return _split(shares, best) if best else None


def _worth(shares: Shares, label: Label, deadline_s: float | None) -> tuple[float, float]:
    energy_j = label.spent_j + shares.sharing.idle_w * label.device_s
    return (label.device_s, energy_j) if deadline_s is None else (energy_j, label.device_s)


def _thinned(labels: list[Label], *, energy: bool) -> list[Label]:
    """The labels at one joint that are not worse than another, which holds at least the same rows, in everything."""
    kept: dict[Division, list[Label]] = {}
    for label in sorted(labels, key=lambda x: (x.device_s + x.helper_s, x.free_s, x.spent_j)):
        rivals = kept.setdefault(label.division, [])
        if len(rivals) < MAX_LABELS and not any(_beats(rival, label, energy=energy) for rival in rivals):
            rivals.append(label)
    everywhere = [rival for division, rivals in kept.items() if division.helper < division.device for rival in rivals]
    return [
        label
        for division, rivals in kept.items()
        for label in rivals
        if division.helper < division.device or not any(_beats(r, label, energy=energy) for r in everywhere)
    ]


def _beats(one: Label, other: Label, *, energy: bool) -> bool:
    free_s = max(other.free_s, min(other.device_s, other.helper_s))
    at_once = one.device_s <= other.device_s and one.helper_s <= other.helper_s and one.free_s <= free_s
    return at_once and (not energy or one.spent_j <= other.spent_j)


def _polished(shares: Shares, split: Split | None, deadline_s: float | None) -> Split:
    """Single rows move over the divisions while that helps."""
    if split is None:
        split = evaluate(shares, alone_on_device(shares))
    size = 8
    while size >= 1:
        moved = min(_moves(shares, split, size), key=lambda s: _rank(s, deadline_s), default=split)
        if _rank(moved, deadline_s) < _rank(split, deadline_s):
            split = moved
        else:
            size //= 2
    return split


def _rank(split: Split, deadline_s: float | None) -> tuple[float, float]:
    if deadline_s is None:
        return split.latency_s, split.energy_j
    return (split.energy_j if split.latency_s <= deadline_s else float("inf")), split.latency_s


def _moves(shares: Shares, split: Split, size: int) -> Iterator[Split]:
    """The split with one division moved by `size` rows, or left out."""
    before = split.divisions
    for place in range(1, len(before) - 1):
        at = before[place]
        count = shares.sharing.operators[at.joint].count
        cuts = {min(max(at.device + way * size, 0), count) for way in (-1, 1)} if at.device == at.helper else set()
        for middle in ((), *((Division(at.joint, cut, cut),) for cut in sorted(cuts - {at.device}))):
            found = _walk(shares, (*before[:place], *middle, *before[place + 1 :]))
            if found:
                yield found
