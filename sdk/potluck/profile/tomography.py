"""Which links share a medium, inferred from how fast flows are alone and at once. Pure.

An estimation in the sense of network tomography (R. Castro et al., "Network Tomography: Recent
Developments", Statistical Science 2004): of all trees of switches, airs and sites (`access_tree`),
the one that explains the measured rates with the fewest free rates. `estimate` scores a tree by
the Bayesian information criterion (G. Schwarz, 1978) and searches by local moves from several
starts. `next_probe` asks for the measurement about which the best trees disagree most, and for
none where they agree.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from math import exp, log, log2, sqrt

import numpy as np

from potluck.profile.access_tree import (
    AIR,
    BUS,
    PORT,
    Attachment,
    Block,
    Flow,
    Key,
    Node,
    Site,
    key_of,
    ports,
    sites,
)
from potluck.profile.connection_hints import Hint, likely_tree, unlikeliness
from potluck.profile.flow_model import OUTLIER, Array, FlowModel, fit_rates

NOISE_FRAC = 0.1  # standard deviation of a measured rate
STEPS = 8  # of a fit, at most
N_FITTED = 4  # of the neighbours of a tree, those that are fitted whole
N_RIVALS = 6  # trees that a probe may tell apart
N_CANDIDATES = 60  # probes that are looked at
SURE = 8.0  # a tree that is worse by so much is ruled out
RARITY = {PORT: 0.0, AIR: 0.5, BUS: 3.0}
PORT_RATES = 1.5  # most are as fast both ways
ALONE = 1.5  # rarer still: an air with one node
FAR = 25.0  # one that is worse by so much is not looked at again
HOPELESS = 60.0  # a start that is worse by so much leads to nothing simpler that explains all
TWICE = 1.5  # rates so far apart may be those of crossing an air twice, and once
SMALL = 6  # so few devices are soon looked at from everywhere
WORTH = 0.5  # squared standard deviations by which trees must disagree about a probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Flows at once, and the bytes per second that each had."""

    flows: tuple[Flow, ...]
    bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFit:
    """A tree with the rates that explain the observations best. `score`: less is better; `misfit`:
    the sum of squared errors, in standard deviations.
    """

    tree: Site
    rates: dict[Attachment, float] = field(compare=False)
    misfit: float
    score: float

    def predicted(self, probes: Sequence[Sequence[Flow]]) -> list[list[float]]:
        """Bytes per second of every flow of these sets, each set at once.

        Parameters
        ----------
        probes
            Sets of flows.
        """
        model = FlowModel(self.tree, probes)
        rates = model.rates(np.log([[self.rates[one] for one in model.attachments]]))[0].tolist()
        return [[rates.pop(0) for _ in probe] for probe in probes]

    def error_fracs(
        self, observations: Sequence[Observation], noise_frac: float = NOISE_FRAC
    ) -> dict[Attachment, float]:
        """Standard errors of the rates, as parts of them; infinite where no flow has filled one. A
        tree that explains less than noise would has larger ones.

        Parameters
        ----------
        observations
            That it was fitted to.
        noise_frac
            Standard deviation of a measured rate.
        """
        model = FlowModel(self.tree, [observation.flows for observation in observations])
        n = sum(len(observation.flows) for observation in observations)
        spare = max(1, n - len(model.attachments))
        noise_frac *= sqrt(max(1.0, self.misfit / spare))
        at = np.log([self.rates[one] for one in model.attachments])
        found = model.error_fracs(at, noise_frac).tolist()
        return dict(zip(model.attachments, found, strict=True))


class Tomography:
    """What is known of a home's links, and what to measure next.

    >>> found = Tomography(["laptop", "phone", "home"])
    >>> while flows := found.next_probe():  # doctest: +SKIP
    ...     found.add(Observation(flows=flows, bytes_per_s=measured(flows)))

    Parameters
    ----------
    names
        The devices, `home` among them; two at least.
    noise_frac
        Standard deviation of a measured rate.
    seed
        Of the probes that are looked at.
    hints
        What devices say of their own connection.
    """

    def __init__(
        self,
        names: Sequence[str],
        noise_frac: float = NOISE_FRAC,
        seed: int = 0,
        hints: Mapping[str, Hint] | None = None,
    ) -> None:
        self.names = tuple(sorted(names))
        self.observations: list[Observation] = []
        self._noise_frac = noise_frac
        self._hints = hints or {}
        self._chance = random.Random(seed)
        self._first = first_probes(self.names)
        self._ranked: list[TreeFit] = []
        self._ruled_out: set[Site] = set()
        self._is_fresh = False  # the ranked trees are those around the best by all observations
        self._is_sure = False  # and they were looked for from every start

    @property
    def best(self) -> TreeFit:
        """The tree that explains all observations so far."""
        if not self._is_sure:
            self._is_fresh = False
            self._ruled_out = set()  # when less was known
            self._refresh(from_all=True)
            self._is_sure = True
        return self._ranked[0]

    def fitted(self, tree: Site) -> TreeFit:
        """This tree, with the rates that explain all observations so far best.

        Parameters
        ----------
        tree
            How somebody says that the devices hang together.
        """
        return self._search(set()).fit(tree, steps=2 * STEPS)

    def add(self, observation: Observation) -> None:
        """Take in one more measurement."""
        self.observations.append(observation)
        self._is_fresh = self._is_sure = False
        if self._ranked:
            search = self._search(self._ruled_out)
            again = [search.fit(fit.tree, fit.rates, steps=1) for fit in self._ranked]
            self._ranked = sorted(again, key=lambda it: it.score)

    def next_probe(self) -> tuple[Flow, ...] | None:
        """Flows to measure at once; None where all is known, or n log n probes are made."""
        if len(self.observations) < len(self._first):
            return self._first[len(self.observations)]
        if len(self.observations) - len(self._first) >= most_probes(len(self.names)):
            return None
        if not self._ranked:
            self._refresh()
        return self._telling() or (self._refresh() and self._telling()) or None

    def _refresh(self, *, from_all: bool = False) -> bool:
        """Look for better trees than those ranked; whether that was not done before.

        From all starts, in homes that are not small but for hopeless ones; else, where the best
        tree explains what was seen, from that.
        """
        if self._is_fresh:
            return False
        search = self._search(self._ruled_out)
        found = list(self._ranked)
        starts = self._ranked[:1]
        trees = list(_several_airs(self.names, self.observations))
        if from_all or not starts or not search.explains(starts[0]):
            trees += [ports(self.names), Site((Block(AIR, self.names),))]
            trees += _split_sites(self.names, self.observations)
            trees += [likely_tree(self.names, self._hints)] if self._hints else []
        starts += [search.fit(tree) for tree in trees]
        for start in sorted(starts, key=lambda it: it.score):
            best = min(found, key=lambda it: it.score, default=start)
            is_hopeless = search.explains(best) and start.score > best.score + HOPELESS
            if is_hopeless and not (from_all and len(self.names) <= SMALL):
                break
            best, near = search.descend(start)
            found += [best, *near]
        unique = {fit.tree: fit for fit in sorted(found, key=lambda it: -it.score)}
        self._ranked = sorted(unique.values(), key=lambda it: it.score)[: N_RIVALS + 1]
        self._is_fresh = True
        return True

    def _search(self, ruled_out: set[Site]) -> "_Search":
        return _Search(self.observations, self._noise_frac, ruled_out, self._hints)

    def _telling(self) -> tuple[Flow, ...] | None:
        """The probe about which the ranked trees disagree most, if that is worth it."""
        best = self._ranked[0]
        rivals = [
            (exp((best.score - fit.score) / 2), fit)
            for fit in self._ranked[1:]
            if fit.score - best.score < SURE
        ]
        rivals.append((1.0, self._unseen(best)))
        probes = list(_candidates(self.names, self._chance))
        worths = [0.0] * len(probes)
        expected = best.predicted(probes)
        for likely, rival in rivals:
            for i, (mine, theirs) in enumerate(zip(expected, rival.predicted(probes), strict=True)):
                worths[i] += likely * sum(
                    min(abs(log(a / b)) / self._noise_frac, OUTLIER) ** 2
                    for a, b in zip(mine, theirs, strict=True)
                )
        worth, probe = max(zip(worths, probes, strict=True))
        return probe if worth > WORTH else None

    def _unseen(self, best: TreeFit) -> TreeFit:
        """The best tree, where every attachment that no flow has filled yet is twice as fast."""
        model = FlowModel(best.tree, [observation.flows for observation in self.observations])
        slack = model.slack(np.log([best.rates[one] for one in model.attachments]))
        return replace(best, rates=best.rates | {one: 2 * best.rates[one] for one in slack})


def first_probes(names: Sequence[str]) -> list[tuple[Flow, ...]]:
    """What is measured before anything is known: a flow to and from everybody, both ways round a
    ring, and then all of the ring at once.
    """
    ring = [(a, b) for a, b in zip(names, (*names[1:], names[0]), strict=True)]
    alone = dict.fromkeys((flow,) for flow in (*ring, *((b, a) for a, b in ring)))
    return [*alone, tuple(ring)]


def most_probes(n: int) -> int:
    """Probes that `n` devices are measured with at most, beside the first: n log n."""
    return max(1, round(n * log2(n)))


def _split_sites(names: Sequence[str], observations: Sequence[Observation]) -> Iterator[Site]:
    """Trees with one site, of devices that are joined by flows from above the widest gap between
    rates.
    """
    best = _best_rates(observations)
    gap, slow = _widest_gap(best.values())
    if gap < 2:
        return
    for inside in _joined(names, [pair for pair, rate in best.items() if rate > slow]):
        outside = [name for name in names if name not in inside]
        if len(inside) > 1 and outside:
            yield _site((*ports(outside).blocks, Block(PORT, (_site(ports(inside).blocks),))))


def _several_airs(names: Sequence[str], observations: Sequence[Observation]) -> Iterator[Site]:
    """The tree with an air of each group of devices that are joined by flows from below the widest
    gap between rates of flows alone: within an air a flow crosses it twice, to another one once.
    """
    best = _best_rates([each for each in observations if len(each.flows) == 1])
    gap, slow = _widest_gap(best.values())
    groups = _joined(names, [pair for pair, rate in best.items() if rate <= slow])
    if gap > TWICE and sum(len(group) > 1 for group in groups) > 1:
        kinds = {group: AIR if len(group) > 1 else PORT for group in groups}
        yield _site(tuple(_block(kind, tuple(group)) for group, kind in kinds.items()))


def _best_rates(observations: Sequence[Observation]) -> dict[frozenset[str], float]:
    """Of each two devices, the most bytes per second that a flow between them had."""
    best: dict[frozenset[str], float] = {}
    for observation in observations:
        for flow, rate in zip(observation.flows, observation.bytes_per_s, strict=True):
            best[frozenset(flow)] = max(best.get(frozenset(flow), 0.0), rate)
    return best


def _widest_gap(rates: Iterable[float]) -> tuple[float, float]:
    """How many times the next one of these is as much at the most, and the one below that gap."""
    return max(((b / a, a) for a, b in pairwise(sorted(rates))), default=(1.0, 0.0))


def _joined(names: Sequence[str], pairs: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The groups of names that these pairs join."""
    group = {name: frozenset((name,)) for name in names}
    for pair in pairs:
        joined = frozenset().union(*(group[name] for name in pair))
        group |= dict.fromkeys(joined, joined)
    return list(dict.fromkeys(group.values()))


def _candidates(names: Sequence[str], chance: random.Random) -> Iterator[tuple[Flow, ...]]:
    """Probes of one to three flows, no two of which are sent, or received, by the same device."""
    pairs = [(a, b) for a in names for b in names if a != b]
    for _ in range(N_CANDIDATES):
        flows = [chance.choice(pairs)]
        for other in chance.sample(pairs, min(len(pairs), 8)):
            if all(other[0] != a and other[1] != b for a, b in flows):
                flows.append(other)
            if len(flows) == 1 + chance.randrange(1, 3):
                break
        yield tuple(flows)


class _Search:
    """Trees against one set of observations."""

    def __init__(
        self,
        observations: Sequence[Observation],
        noise_frac: float,
        ruled_out: set[Site],
        hints: Mapping[str, Hint],
    ) -> None:
        self._probes = [observation.flows for observation in observations]
        self._seen = [rate for observation in observations for rate in observation.bytes_per_s]
        self._noise_frac = noise_frac
        self._ruled_out = ruled_out
        self._hints = hints

    def descend(self, fit: TreeFit) -> tuple[TreeFit, list[TreeFit]]:
        """The best tree that moves lead to, each better than the one before, and its neighbours."""
        while True:
            kinds = _kinds(fit.tree)
            rough = [
                self.glance(tree, _kept(fit.rates, kinds, tree))
                for tree in dict.fromkeys(moves(fit.tree))
                if tree not in self._ruled_out
            ]
            self._ruled_out |= {it.tree for it in rough if it.score > fit.score + FAR}
            rough.sort(key=lambda it: it.score)
            near = [self.fit(it.tree, it.rates) for it in rough[:N_FITTED]]
            best = min(near, key=lambda it: it.score, default=fit)
            if best.score >= fit.score - 1e-9:
                return fit, [*near, *rough[N_FITTED:]]
            fit = best

    def explains(self, fit: TreeFit) -> bool:
        """Whether it is off by no more than noise makes likely (3 standard deviations)."""
        return fit.misfit < len(self._seen) + 3 * sqrt(2 * len(self._seen))

    def fit(
        self, tree: Site, rates: Mapping[Attachment, float] | None = None, steps: int = STEPS
    ) -> TreeFit:
        """The tree with its best rates, from these on."""
        model = FlowModel(tree, self._probes)
        known = rates or {}
        least = zip(model.attachments, model.least_rates(self._seen), strict=True)
        start = np.log([max(known.get(one, 0.0), rate) for one, rate in least])
        return self._fitted(tree, model, start, steps, np.arange(len(start)))

    def glance(self, tree: Site, rates: Mapping[Attachment, float]) -> TreeFit:
        """The tree with these rates, and the best ones of attachments that have none in them."""
        model = FlowModel(tree, self._probes)
        least = zip(model.attachments, model.least_rates(self._seen), strict=True)
        start = np.log([rates.get(one, rate) for one, rate in least])
        new = [i for i, one in enumerate(model.attachments) if one not in rates]
        return self._fitted(tree, model, start, 1, np.array(new, int))

    def _fitted(
        self, tree: Site, model: FlowModel, start: Array, steps: int, free: Array
    ) -> TreeFit:
        at, misfit = fit_rates(model, self._seen, start, self._noise_frac, steps=steps, free=free)
        return TreeFit(
            tree=tree,
            rates=dict(zip(model.attachments, np.exp(at).tolist(), strict=True)),
            misfit=misfit,
            score=misfit / 2
            + _n_free(tree) * log(len(self._seen)) / 2
            + unlikeliness(tree, self._hints),
        )


def _kinds(tree: Site) -> dict[Key, str]:
    """The kind of the block that each node is in."""
    return {
        key_of(node): block.kind
        for site in sites(tree)
        for block in site.blocks
        for node in block.nodes
    }


def _kept(
    rates: Mapping[Attachment, float], kinds: Mapping[Key, str], tree: Site
) -> dict[Attachment, float]:
    """The rates that mean the same in another tree: a flow crosses an air twice, and a bus once."""
    now = _kinds(tree)
    return {(key, way): rate for (key, way), rate in rates.items() if now.get(key) == kinds[key]}


def _n_free(tree: Site) -> float:
    """Free rates, and more for what is rarer than its alternatives."""
    free = -1.0
    for site in sites(tree):
        free += 1
        for block in site.blocks:
            free += RARITY[block.kind] + sum(
                1 if block.kind != PORT else PORT_RATES if isinstance(node, str) else 2
                for node in block.nodes
            )
            if block.kind != PORT and len(block.nodes) == 1:
                free += ALONE
    return free


def moves(tree: Site) -> Iterator[Site]:
    """Trees that differ in one thing."""
    for blocks in _moved(tree):
        yield Site(blocks)


def _moved(site: Site) -> Iterator[tuple[Block, ...]]:
    blocks = site.blocks
    for x, y in combinations(range(len(blocks)), 2):
        rest = tuple(block for i, block in enumerate(blocks) if i not in (x, y))
        nodes = blocks[x].nodes + blocks[y].nodes
        yield (*rest, _block(AIR, nodes))
        yield (*rest, _block(BUS, nodes))
        if PORT not in (blocks[x].kind, blocks[y].kind):
            for a, b in ((blocks[x], blocks[y]), (blocks[y], blocks[x])):
                for node in a.nodes if len(a.nodes) > 1 else ():
                    stays = tuple(other for other in a.nodes if other is not node)
                    yield (*rest, _block(a.kind, stays), _block(b.kind, (*b.nodes, node)))
        if rest:
            yield (*rest, Block(PORT, (_site((blocks[x], blocks[y])),)))
            for a, b in ((blocks[x], blocks[y]), (blocks[y], blocks[x])):
                for node in a.nodes:
                    if isinstance(node, Site):
                        grown = _site((*node.blocks, b))
                        yield (
                            *rest,
                            _block(a.kind, tuple(grown if n is node else n for n in a.nodes)),
                        )
    for i, block in enumerate(blocks):
        rest = blocks[:i] + blocks[i + 1 :]
        for kind in (AIR, BUS, PORT):
            if kind != block.kind and kind != (BUS if len(block.nodes) == 1 else PORT):
                yield (*rest, _block(kind, block.nodes))
        if block.kind != PORT and len(block.nodes) > 2:
            for two in combinations(block.nodes, 2):
                apart = tuple(node for node in block.nodes if node not in two)
                yield (*rest, _block(block.kind, (*apart, _site(_below(*two)))))
        for node in block.nodes:
            others = tuple(other for other in block.nodes if other is not node)
            left = (_block(block.kind, others),) if others else ()
            if len(block.nodes) > 1:
                yield (*rest, *left, Block(PORT, (node,)))
            if isinstance(node, Site):
                yield (*rest, *left, *node.blocks)
                for inner in _moved(node):
                    yield (*rest, _block(block.kind, (*others, _site(inner))))
                for j, taken in enumerate(node.blocks):
                    kept = node.blocks[:j] + node.blocks[j + 1 :]
                    if len(frozenset().union(*(b.key for b in kept))) > 1:
                        yield (*rest, _block(block.kind, (*others, _site(kept))), taken)


def _block(kind: str, nodes: tuple[Node, ...]) -> Block:
    return Block(kind, tuple(sorted(nodes, key=_order)))


def _site(blocks: tuple[Block, ...]) -> Site:
    return Site(tuple(sorted(blocks, key=lambda it: sorted(it.key))))


def _below(*nodes: Node) -> tuple[Block, ...]:
    """What a site of these nodes joins."""
    return tuple(
        block
        for node in nodes
        for block in (node.blocks if isinstance(node, Site) else (Block(PORT, (node,)),))
    )


def _order(node: Node) -> list[str]:
    return [node] if isinstance(node, str) else sorted(node.key)
