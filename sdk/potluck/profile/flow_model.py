"""How fast flows are in a tree of given rates, for many rates at once; and the rates that explain
what was measured. Pure.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from potluck.profile.access_tree import Attachment, Flow, Site, attachments, bus_keys, crossings

Array = np.ndarray[Any, np.dtype[Any]]

NUDGE = 0.03  # of the logarithm of a rate, for slopes
DAMPING = (0.01, 0.3, 3.0, 30.0)  # of a step, all tried at once
LEAST_GAIN = 0.1  # squared standard deviations; a step that gains less is the last
ROUNDING = 1e-9  # as parts; media that are full at the same time
OUTLIER = 4.0  # standard deviations; what is further off counts as no further


class FlowModel:
    """One tree and sets of flows, each set at once.

    Parameters
    ----------
    tree
        How the devices hang together.
    probes
        The sets of flows.
    """

    def __init__(self, tree: Site, probes: Sequence[Sequence[Flow]]) -> None:
        self.attachments: list[Attachment] = attachments(tree)
        place = {one: i for i, one in enumerate(self.attachments)}
        flows = [flow for probe in probes for flow in probe]
        known = {flow: crossings(tree, flow) for flow in dict.fromkeys(flows)}
        ways = [known[flow] for flow in flows]
        media = {m: i for i, m in enumerate(dict.fromkeys(m for way in ways for m, _ in way))}
        nobody = len(place)
        # of the attachments whose times a flow takes of a medium: two at most
        self._used = np.full((2, len(flows), len(media)), nobody)
        uses = [
            (k, f, media[medium], place[one])
            for f, way in enumerate(ways)
            for medium, used in way
            for k, one in enumerate(used)
        ]
        kth, flow, medium, one = zip(*uses, strict=True) if uses else ((), (), (), ())
        self._used[list(kth), list(flow), list(medium)] = one
        buses = bus_keys(tree)
        self._is_bus = np.array([medium in buses for medium in media], bool)
        sizes = np.array([len(probe) for probe in probes], int)
        each_size = np.repeat(sizes, sizes)
        self._alone, self._several = np.flatnonzero(each_size == 1), np.flatnonzero(each_size > 1)
        sizes = sizes[sizes > 1]
        self._probe_of = np.repeat(np.arange(len(sizes)), sizes)
        self._starts = np.cumsum(sizes) - sizes

    def rates(self, log_rates: Array) -> Array:
        """Bytes per second of every flow, max-min fair within its set: all rise together until one
        of their media is busy all the time.

        Parameters
        ----------
        log_rates
            Logarithms of the attachments' rates, [variants, attachments].

        Returns
        -------
        Array
            [variants, flows].
        """
        times = np.exp(-log_rates)
        times = np.concatenate([times, np.zeros((len(times), 1))], axis=1)
        first, second = times[:, self._used[0]], times[:, self._used[1]]
        need = first + second
        if self._is_bus.any():
            need = np.where(self._is_bus, np.maximum(first, second), need)
        found = np.empty(need.shape[:2])
        found[:, self._alone] = 1 / need[:, self._alone].max(axis=2)
        if len(self._several):
            found[:, self._several] = self._fair(need[:, self._several])
        return found

    def _fair(self, need: Array) -> Array:
        """Of the flows that have others in their set; [variants, flows] from [.., media]."""
        found = np.zeros(need.shape[:2])
        rising = np.ones(need.shape[:2], bool)
        crosses = need > 0
        busy = np.zeros((len(need), len(self._starts), need.shape[2]))
        while rising.any():
            load = np.add.reduceat(need * rising[..., None], self._starts, axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                level = np.where(load > 0, (1 - busy) / load, np.inf)
            reached = level.min(axis=2)
            is_full = level <= reached[..., None] * (1 + ROUNDING)
            stops = rising & (crosses & is_full[:, self._probe_of]).any(axis=2)
            passed = np.where(stops, reached[:, self._probe_of], 0.0)
            found += passed
            busy += np.add.reduceat(need * passed[..., None], self._starts, axis=1)
            rising &= ~stops
        return found

    def slack(self, log_rates: Array) -> list[Attachment]:
        """The attachments that no flow has filled: with more of their rate nothing is faster.

        Parameters
        ----------
        log_rates
            Logarithms of the attachments' rates.
        """
        more = log_rates + np.eye(len(log_rates)) * NUDGE
        around = self.rates(np.concatenate([log_rates[None], more]))
        filled = (around[1:] != around[0]).any(axis=1)
        return [one for one, is_full in zip(self.attachments, filled, strict=True) if not is_full]

    def error_fracs(self, log_rates: Array, noise_frac: float) -> Array:
        """Standard errors of the attachments' rates, as parts of them; infinite where no flow has
        filled one.

        Parameters
        ----------
        log_rates
            Logarithms of the attachments' rates.
        noise_frac
            Standard deviation of a measured rate.
        """
        around = self.rates(
            np.concatenate([log_rates[None], log_rates + NUDGE * np.eye(len(log_rates))])
        )
        slopes = np.log(around[1:] / around[0]).T / NUDGE
        found = np.full(len(log_rates), np.inf)
        filled = abs(slopes).sum(axis=0) > 0
        normal = slopes[:, filled].T @ slopes[:, filled]
        found[filled] = noise_frac * np.sqrt(np.diag(np.linalg.pinv(normal)))
        return found

    def least_rates(self, bytes_per_s: Sequence[float]) -> Array:
        """What each attachment has at least: its fastest flow, as often as that crosses its medium.

        Parameters
        ----------
        bytes_per_s
            Of every flow.
        """
        found = np.ones(len(self.attachments) + 1)
        double = (self._used[1] < len(self.attachments)) & ~self._is_bus
        rate = np.asarray(bytes_per_s)[:, None] * np.where(double, 2.0, 1.0)
        for used in self._used:
            np.maximum.at(found, used, np.broadcast_to(rate, used.shape))
        return found[:-1]


def fit_rates(
    model: FlowModel,
    seen: Sequence[float],
    start: Array,
    noise_frac: float,
    *,
    steps: int,
    free: Array,
) -> tuple[Array, float]:
    """The attachments' rates that explain best what was seen: a damped least squares of logarithms
    (Levenberg and Marquardt), in which outliers count as `OUTLIER`.

    Parameters
    ----------
    model
        The tree and the sets of flows.
    seen
        Bytes per second of every flow.
    start
        Logarithms of rates to begin with.
    noise_frac
        Standard deviation of a measured rate.
    steps
        At most.
    free
        Which attachments' rates may change: their places.

    Returns
    -------
    tuple
        Logarithms of the rates; the sum of squared errors, in standard deviations.
    """
    target = np.log(np.asarray(seen))

    def errors(log_rates: Array) -> Array:
        found: Array = (np.log(model.rates(log_rates)) - target) / noise_frac
        return found

    def total(found: Array) -> Array:
        squares: Array = (np.minimum(abs(found), OUTLIER) ** 2).sum(axis=-1)
        return squares

    at, ways = start, np.eye(len(start))[free]
    least = float(total(errors(at[None]))[0])
    for _ in range(steps if len(free) else 0):
        around = errors(np.concatenate([at[None], at + NUDGE * ways]))
        error, slopes = around[0], (around[1:] - around[0]).T / NUDGE
        within = (abs(error) < OUTLIER)[:, None]
        normal, pull = (slopes * within).T @ slopes, (slopes * within).T @ error
        damped = normal + np.array(DAMPING)[:, None, None] * np.eye(len(free))
        wanted = np.broadcast_to(pull[:, None], (len(damped), len(free), 1))
        tried = at - np.linalg.solve(damped, wanted)[..., 0] @ ways
        worth = total(errors(tried))
        gain = least - float(worth.min())
        if gain > 0:
            at, least = tried[int(worth.argmin())], float(worth.min())
        if gain < LEAST_GAIN:
            break
    return at, least
