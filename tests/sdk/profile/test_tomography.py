"""Which links share is inferred: on homes drawn at random, with noise, and from real probes."""

import random

import pytest

from potluck.records import HOME

pytest.importorskip("numpy")

from potluck.bench.tomography import WIRINGS, drawn, errors_by_medium, measured
from potluck.profile.access_tree import AIR, Block, Site, attachments
from potluck.profile.link_probes import WAIT_BYTES, latency, measure_links, rates_at_once
from potluck.profile.tomography import Tomography, TreeFit, first_probes, most_probes


def found(wiring, seed, noise_frac):
    rng = random.Random(f"{wiring} {seed}")
    names, tree, rates = drawn(rng, wiring)
    tomography = Tomography([*names, HOME], seed=seed)
    while flows := tomography.next_probe():
        tomography.add(measured(tree, rates, flows, rng, noise_frac))
    return names, tree, rates, tomography


@pytest.mark.few(1)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_flows_that_share_a_medium_are_known_to(wiring):
    names, tree, rates, tomography = found(wiring, 1, 0.03)
    best = tomography.best
    for errors in errors_by_medium(names, tree, rates, best.tree, best.rates):
        right = sum(error < 0.2 for error in errors)
        assert right >= 0.9 * len(errors)
    n = len(names) + 1
    assert len(tomography.observations) <= len(first_probes(range(n))) + most_probes(n)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
def test_two_channels_as_fast_as_each_other_are_told_apart(seed):
    rng = random.Random(seed)
    names = ["a", "b", "c", "d", "e", HOME]
    rng.shuffle(names)
    n_first = rng.randint(2, 4)
    tree = Site((Block(AIR, tuple(names[:n_first])), Block(AIR, tuple(names[n_first:]))))
    rates = dict.fromkeys(attachments(tree), 6e6)
    tomography = Tomography(names)
    while flows := tomography.next_probe():
        tomography.add(measured(tree, rates, flows, rng, 0.04))
    airs = {frozenset(block.nodes) for block in tomography.best.tree.blocks if block.kind == AIR}
    assert airs == {frozenset(names[:n_first]), frozenset(names[n_first:])}


def test_nobody_is_asked_to_send_two_flows_or_to_receive_two():
    *_, tomography = found("wifi and cables", 2, 0.1)
    for observation in tomography.observations:
        senders, receivers = zip(*observation.flows, strict=True)
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)


@pytest.mark.long
def test_the_same_measurements_give_the_same_answer():
    first, second = (found("two channels", 3, 0.1)[3] for _ in range(2))
    assert first.best.tree == second.best.tree
    assert first.observations == second.observations


class Played:
    """Flows over a tree, one value after the other, each with a wait for its answer."""

    def __init__(self, tree, rates, wait_s):
        self.truth = TreeFit(tree=tree, rates=rates, misfit=0.0, score=0.0)
        self.wait_s = wait_s
        self.n_bytes = 0

    def send(self, sizes):
        (rates,) = self.truth.predicted([list(sizes)])
        self.n_bytes += sum(n * nbytes for n, nbytes in sizes.values())
        return {
            flow: [nbytes / rate + self.wait_s] * n
            for (flow, (n, nbytes)), rate in zip(sizes.items(), rates, strict=True)
        }


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", [6e4, 6e5, 6e6])
def test_an_air_is_measured_by_values_that_are_sent(rate):
    names = ["a", "b", "c", "d", HOME]
    tree = Site((Block(AIR, tuple(names)),))
    rates = dict.fromkeys(attachments(tree), rate)
    played = Played(tree, rates, 0.002)
    # a small value takes the time of its bytes, too, which on a slow link is most of it
    wait_s = 0.002 + WAIT_BYTES / (rate / 2)
    waits_s = {(a, b): wait_s for a in names for b in names if a != b}
    fit = measure_links(names, played.send, waits_s).best
    assert fit.predicted([[("a", "b")], [("a", "b"), ("c", "d")]]) == [
        [pytest.approx(rate / 2, rel=0.05)],
        [pytest.approx(rate / 4, rel=0.05)] * 2,
    ]
    assert latency(wait_s, rate / 2) == pytest.approx(0.002)


def test_only_the_time_in_which_all_flows_last_counts():
    sizes = {("a", "b"): (4, 100), ("c", "d"): (2, 100)}
    # the second flow ends after two seconds; the first is then alone, and twice as fast
    sent = {("a", "b"): [1, 1, 0.5, 0.5], ("c", "d"): [1, 1]}
    assert rates_at_once(sizes, sent, {}) == {("a", "b"): 100.0, ("c", "d"): 100.0}
