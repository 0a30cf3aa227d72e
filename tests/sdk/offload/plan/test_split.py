"""Sharing one request between a device and its helpers: worked by hand, against every division, and
at the edges.
"""

import itertools
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import PlanError
from potluck.offload.plan import baselines
from potluck.offload.plan.bandwidths import over, turn
from potluck.offload.plan.problem import (
    DEVICE,
    HELPER,
    NONE,
    Division,
    OffloadProblem,
    Operator,
    SharedLink,
    Shares,
    without,
)
from potluck.offload.plan.split import SplitRules, Splitter, share
from potluck.offload.plan.steps import steps, useful
from potluck.offload.plan.times import times


@dataclass(frozen=True)
class Window:
    """A window of rows around each row."""

    count: int
    reach: int = 0

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        return max(start - self.reach, 0), min(stop + self.reach, self.count)


def chain(
    n: int = 4,
    *,
    count: int = 10,
    reach: int = 0,
    row_bytes: int = 100,
    device_s: float = 1.0,
    helper_s: float = 0.5,
    bytes_per_s: float = 1e3,
    latency_s: float = 0.0,
    tail_s: float = 0.0,
    **link: float,
) -> OffloadProblem:
    """`n` operators with windows, then (with `tail_s`) one that needs every row.

    The result has 1 row of 10 bytes.
    """
    operators = [Operator(name="input", count=count, row_bytes=row_bytes)]
    for i in range(n):
        operators.append(
            Operator(
                name=f"window {i}",
                count=count,
                row_bytes=row_bytes,
                side_s=(device_s, helper_s),
                inputs=((i, Window(count, reach)),),
            )
        )
    operators.append(
        Operator(
            name="head", count=1, row_bytes=10, side_s=(tail_s, tail_s / 2), inputs=((n, None),)
        )
    )
    operators.append(Operator(name="result", count=1, row_bytes=10, inputs=((n + 1, None),)))
    return OffloadProblem(
        operators=tuple(operators), bytes_per_s=bytes_per_s, latency_s=latency_s, **link
    )


def branched(draw: random.Random) -> OffloadProblem:
    """A few operators that read one or two earlier ones, as skips and branches do.

    A head that needs all.
    """
    count = draw.randint(2, 5)
    operators = [Operator(name="input", count=count, row_bytes=draw.randint(10, 200))]
    for i in range(1, draw.randint(3, 5)):
        read = {i - 1, draw.randrange(i)}
        inputs = tuple(
            (u, Window(count, draw.randint(0, 1)) if draw.random() < 0.8 else None)
            for u in sorted(read)
        )
        operators.append(
            Operator(
                name=str(i),
                count=count,
                row_bytes=draw.randint(10, 200),
                side_s=(draw.uniform(0.1, 1.0), draw.uniform(0.01, 1.0)),
                inputs=inputs,
                divisible=draw.random() < 0.9,
            )
        )
    last = len(operators)
    operators.append(
        Operator(name="result", count=1, row_bytes=1, inputs=((last - 1, None), (last // 2, None)))
    )
    return OffloadProblem(
        operators=tuple(operators),
        bytes_per_s=10 ** draw.uniform(1, 4),
        latency_s=draw.uniform(0, 0.05),
        piece_s=draw.choice((0.0, 0.01)),
        busy_w=10.0,
        radio_w=2.0,
        idle_w=3.0,
    )


def with_another_helper(sharing: OffloadProblem, draw: random.Random) -> OffloadProblem:
    """One helper more, joined to the first by a cable or by the same air."""
    operators = tuple(
        replace(op, side_s=(*op.side_s, op.seconds(HELPER) * draw.uniform(0.3, 3)))
        if op.side_s
        else op
        for op in sharing.operators
    )
    cable = SharedLink(media=((1, 1),), latency_s=0.001)
    wired = (
        {"lines": {(1, 2): cable, (2, 1): cable}, "media_bytes_per_s": (1e5,)}
        if draw.random() < 0.5
        else {}
    )
    return replace(sharing, operators=operators, n_sides=3, **wired)


def plain(sharing: OffloadProblem, cut: int) -> list[Division]:
    """The device computes the rows up to `cut` of every operator with windows, and the head."""
    *front, _, _ = sharing.operators
    return [*(((0, cut), (cut, op.count)) for op in front), ((0, 1), NONE), ((0, 1), NONE)]


def test_rows_are_needed_ever_further_out_towards_the_input():
    shares = Shares(chain(3, reach=1))
    assert shares.needed(3, {3: (4, 5)}) == {3: (4, 5), 2: (3, 6), 1: (2, 7), 0: (1, 8)}


@pytest.mark.parametrize(
    ("rows", "taken", "remaining"),
    [
        ((0, 9), [], [(0, 9)]),
        ((0, 9), [(3, 5)], [(0, 3), (5, 9)]),
        ((2, 6), [(5, 9), (0, 3)], [(3, 5)]),
        ((2, 6), [(0, 9)], []),
        ((2, 6), [(4, 4), (7, 9)], [(2, 6)]),
    ],
)
def test_rows_without_others(rows, taken, remaining):
    assert without(rows, taken) == remaining


def test_a_split_worked_by_hand():
    # The helper takes rows 6 to 10 of the input, one at a time: 100 bytes, 0.1 s each, there 0.1 s
    # later: at 0.2, 0.3, 0.4 and 0.5 s. It computes a row of all four operators in 4 x 0.05 = 0.2
    # s, as soon as it is there: until 1.0 s. Each comes back at once, at 0.6, 0.8, 1.0 and 1.2 s.
    # The device computes its 6 rows in 4 x 0.6 = 2.4 s, then the head, which needs all, in 1 s: 3.4
    # s.
    sharing = chain(4, latency_s=0.1, tail_s=1.0, busy_w=10, radio_w=3, idle_w=2)
    split = Splitter(sharing).evaluate(plain(sharing, 6), 1e3)
    assert split.latency_s == pytest.approx(3.4)
    assert (split.sent_bytes, split.received_bytes) == (400, 400)
    # 3.4 s at 2 W, 3.4 s of them computing at 8 W more, 0.8 s of radio at 3 W; both ways meet on
    # the air for 0.1 s
    assert split.energy_j == pytest.approx(3.4 * 2 + 3.4 * 8 + 0.8 * 3)


def test_the_steps_of_a_split_worked_by_hand():
    # Two operators with windows of 3 rows, cut in the middle. The row next to the seam is made
    # first on either side and goes over; what waits for it is a piece of its own; nothing is
    # computed twice.
    sharing = chain(2, count=4, reach=1)
    todo = steps(Shares(sharing), plain(sharing, 2), tiles=1)
    assert [(step.side, step.sends, dict(step.rows), step.after) for step in todo] == [
        (DEVICE, True, {0: (1, 4)}, ()),
        (HELPER, False, {1: (2, 3)}, (0,)),
        (HELPER, True, {1: (2, 3)}, (1,)),
        (DEVICE, False, {1: (1, 2)}, ()),
        (DEVICE, True, {1: (1, 2)}, (3,)),
        (HELPER, False, {1: (3, 4), 2: (3, 4)}, (0, 1)),
        (HELPER, False, {2: (2, 3)}, (1, 4, 5)),
        (HELPER, True, {2: (2, 4)}, (5, 6)),
        (DEVICE, False, {1: (0, 1), 2: (0, 1)}, (3,)),
        (DEVICE, False, {2: (1, 2)}, (2, 3, 8)),
        (DEVICE, False, {3: (0, 1), 4: (0, 1)}, (7, 8, 9)),
    ]


def test_without_a_link_the_device_does_it_all():
    split = share(chain(bytes_per_s=0.0))
    assert split.latency_s == pytest.approx(4.0)
    assert (split.sent_bytes, split.received_bytes) == (0, 0)


def test_over_an_endless_link_a_helper_that_is_much_faster_does_nearly_all():
    split = share(chain(helper_s=1e-3, bytes_per_s=1e12))
    assert split.latency_s < 0.01


def test_rows_that_are_sent_are_made_first_and_go_while_others_are_made():
    # The front is much smaller behind it and has to run on the device: its rows go over while the
    # next are computed.
    operators = (
        Operator(name="input", count=8, row_bytes=10**6),
        Operator(name="front", count=8, row_bytes=100, side_s=(0.8, 0.1), inputs=((0, Window(8)),)),
        Operator(name="back", count=8, row_bytes=100, side_s=(8.0, 0.8), inputs=((1, Window(8)),)),
        Operator(name="result", count=1, row_bytes=1, inputs=((2, None),)),
    )
    splitter = Splitter(OffloadProblem(operators=operators, bytes_per_s=1e3))
    cut = baselines.least_cut(splitter.shares, 1e3)
    assert cut == (((0, 8), NONE), ((0, 8), NONE), (NONE, (0, 8)), ((0, 1), NONE))
    assert splitter.evaluate(cut, 1e3, tiles=1).latency_s == pytest.approx(0.8 + 0.8 + 0.8 + 0.8)
    # in eight parts of 0.1 s each: the fourth stage of the pipeline ends at 0.1 x (8 + 3); both
    # ways share the air
    assert splitter.evaluate(cut, 1e3, tiles=8).latency_s < 2.0


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_never_worse_than_what_others_do(seed):
    splitter = Splitter(branched(random.Random(seed)))
    rate = splitter.shares.sharing.bytes_per_s
    best = splitter.share(rate)
    others = [baselines.all_on_device(splitter.shares), baselines.all_on_helper(splitter.shares)]
    others += [
        *baselines.line_cuts(splitter.shares),
        baselines.greedy_tiling(splitter.shares, rate),
    ]
    others.append(baselines.least_cut(splitter.shares, rate))
    for divisions in others:
        assert best.latency_s <= splitter.evaluate(divisions, rate, tiles=1).latency_s + 1e-12


def in_turn_s(shares: Shares, on_device: frozenset[int], bytes_per_s: float) -> float:
    """The sum of all seconds of a layer cut: nothing overlaps."""
    sharing = shares.sharing
    sent = set()
    back = set()
    total = 0.0
    for place in range(1, len(shares.operators)):
        side = DEVICE if place in on_device or place == shares.last else HELPER
        total += sharing.seconds(side, place, shares.operators[place].count)
        for source, _ in shares.windows[place]:
            if side == HELPER and (source in on_device or not source):
                sent.add(source)
            elif side == DEVICE and source and source not in on_device:
                back.add(source)
    return total + sum(
        shares.operators[u].nbytes / bytes_per_s + sharing.latency_s for u in (*sent, *back)
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_the_least_cut_is_the_best_of_all_cuts_of_the_graph(seed):
    sharing = branched(random.Random(seed))
    shares, rate = Shares(sharing), sharing.bytes_per_s
    inner = range(1, shares.last)
    best = float("inf")
    for n in range(len(inner) + 1):
        for chosen in itertools.combinations(inner, n):
            closed = all(u in chosen or not u for v in chosen for u, _ in shares.windows[v])
            if closed:
                best = min(best, in_turn_s(shares, frozenset(chosen), rate))
    cut = baselines.least_cut(shares, rate)
    found = frozenset(place for place in inner if cut[place][DEVICE] != NONE)
    assert in_turn_s(shares, found, rate) == pytest.approx(best)


def divisions_of(count: int, n_sides: int) -> list[Division]:
    """All ways to give every side some neighbouring rows, or none, in the order of the sides."""
    bounds = itertools.combinations_with_replacement(range(count + 1), n_sides - 1)
    return [tuple(itertools.pairwise((0, *inner, count))) for inner in bounds]


def ratio_to_the_best_of_all(n_sides, seed):
    """Of a random chain whose operators have three rows, the coarsest there are: no row is computed
    twice.
    """
    draw = random.Random(seed)
    sharing = chain(
        2,
        count=3,
        reach=draw.randint(0, 1),
        helper_s=draw.uniform(0.05, 1),
        bytes_per_s=10 ** draw.uniform(2, 4),
        latency_s=draw.uniform(0, 0.05),
        tail_s=draw.random(),
    )
    sharing = sharing if n_sides == 2 else with_another_helper(sharing, draw)
    splitter, rate = Splitter(sharing), sharing.bytes_per_s
    best, idle = float("inf"), (NONE,) * (n_sides - 1)
    for inner in itertools.product(*(divisions_of(count, n_sides) for count in (3, 3, 1))):
        for tiles in (1, 3):
            found = splitter.evaluate([((0, 3), *idle), *inner, ((0, 1), *idle)], rate, tiles)
            best = min(best, found.latency_s)
    return splitter.share(rate).latency_s / best


@pytest.mark.long
@pytest.mark.parametrize("n_sides", [2, 3])
def test_close_to_the_best_of_all_divisions_on_most_problems_and_never_far_from_it(n_sides):
    n_problems = 24 if n_sides == 2 else 12
    seeds = range(1000, 1000 + n_problems)
    ratios = sorted(ratio_to_the_best_of_all(n_sides, seed) for seed in seeds)
    assert ratios[int(0.75 * len(ratios))] <= 1.05
    assert ratios[-1] <= 1.35


def test_a_deadline_buys_energy_and_the_front_runs_from_fast_to_frugal():
    splitter = Splitter(chain(helper_s=0.1, bytes_per_s=2e3, busy_w=10, radio_w=4, idle_w=1))
    fastest = splitter.share(2e3)
    frugal = splitter.share(2e3, deadline_s=2 * fastest.latency_s)
    assert frugal.latency_s <= 2 * fastest.latency_s
    assert frugal.energy_j <= fastest.energy_j
    splits = splitter.front(2e3)
    assert [s.latency_s for s in splits] == sorted(s.latency_s for s in splits)
    assert [s.energy_j for s in splits] == sorted((s.energy_j for s in splits), reverse=True)
    cut = baselines.thriftiest_cut(splitter, 2e3, 2 * fastest.latency_s)
    assert frugal.energy_j <= cut.energy_j
    assert cut.latency_s <= 2 * fastest.latency_s


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(1.0, 3.0))
def test_by_a_deadline_no_layer_cut_takes_fewer_joules(draw, times_as_long):
    splitter = Splitter(sharing := branched(draw))
    rate = sharing.bytes_per_s
    deadline_s = times_as_long * splitter.share(rate).latency_s
    cut = baselines.thriftiest_cut(splitter, rate, deadline_s)
    if cut.latency_s <= deadline_s:
        assert splitter.share(rate, deadline_s=deadline_s).energy_j <= cut.energy_j * (1 + 1e-9)


def test_a_deadline_that_nothing_holds_says_how_soon_it_could_be():
    with pytest.raises(
        PlanError, match=r"no split answers within 100\.0 ms; the fastest takes \d+\.\d ms"
    ):
        share(chain(), deadline_s=0.1)


def test_the_papers_rules_are_kept_where_they_are_asked_for():
    sharing = chain(4, reach=1, helper_s=0.1, bytes_per_s=2e3)
    wide = replace(sharing.operators[2], row_bytes=150)  # larger than the raw input
    sharing = replace(sharing, operators=(*sharing.operators[:2], wide, *sharing.operators[3:]))
    strict = Splitter(sharing, rules=SplitRules(raw_bound=True, replicate=False))
    for rate in (1e2, 1e3, 2e3, 1e4, 1e6):
        split = strict.share(rate)
        own, lacking = useful(strict.shares, split.divisions)
        assert not any(lacking[side][2] for side in (DEVICE, HELPER))
        assert all(
            min(a[1], b[1]) <= max(a[0], b[0])
            for a, b in zip(own[DEVICE], own[HELPER], strict=True)
        )
        assert split.latency_s >= Splitter(sharing).share(rate).latency_s - 1e-12


@pytest.mark.long
def test_more_bandwidth_never_hurts():
    splitter, best = Splitter(chain(reach=1, latency_s=0.01)), []
    for rate in (0, 1e2, 1e3, 1e4, 1e5):
        best.append(splitter.share(rate, near=best))
    assert [s.latency_s for s in best] == sorted((s.latency_s for s in best), reverse=True)


def test_between_two_bandwidths_it_turns_to_the_other_split_where_that_becomes_better():
    splitter = Splitter(chain(reach=1, latency_s=0.01))
    low, high = ((rate, splitter.share(rate)) for rate in (100.0, 1e4))
    turns_at = turn(splitter, low, high)
    assert low[0] < turns_at < high[0]
    for rate, better, worse in ((turns_at - 400, low[1], high[1]), (turns_at, high[1], low[1])):
        seconds = [
            splitter.evaluate(split.divisions, rate, split.tiles).latency_s
            for split in (better, worse)
        ]
        assert seconds[0] <= seconds[1]
    assert turn(splitter, (1.0, low[1]), (2.0, low[1])) < 1.1  # the same: at once


@pytest.mark.few(1)
@pytest.mark.parametrize("deadline_s", [None, 1.3])
def test_searches_go_where_the_split_between_two_bandwidths_may_lose_most(deadline_s):
    sharing = replace(chain(2, reach=1, latency_s=0.01), busy_w=2.0, radio_w=0.5, idle_w=0.1)
    splitter, searched = Splitter(sharing), []

    def best(rate, near):
        searched.append(rate)
        try:
            return splitter.share(rate, deadline_s=deadline_s, near=near)
        except PlanError:  # not in time
            return splitter.share(rate, near=near)

    def loss(found, rate):
        entry = [split for start, split in found if start <= rate][-1]
        sought = best(rate, (entry,))
        mine = splitter.evaluate(entry.divisions, rate, entry.tiles)
        if deadline_s is not None and sought.latency_s <= deadline_s:
            return mine.energy_j / sought.energy_j - 1 if mine.latency_s <= deadline_s else 1.0
        return mine.latency_s / sought.latency_s - 1

    ends = (0.0, 10.0, 2e3)
    coarse = over(ends, splitter, best, deadline_s=deadline_s)
    assert len(searched) == len(ends)
    fine = over(ends, splitter, best, max_searches=16, deadline_s=deadline_s)
    assert len(ends) < len(searched) - len(ends) <= 16
    assert len(fine) > len(coarse)
    rates = [50.0, 420.0, 700.0, 1234.0]
    losses = [[loss(found, rate) for rate in rates] for found in (coarse, fine)]
    assert max(losses[1]) < 0.03 < max(losses[0])


def test_rows_that_nobody_computes_are_named():
    sharing = chain(2)
    rows = [((0, 10), NONE), ((0, 4), (6, 10)), *plain(sharing, 5)[2:]]
    with pytest.raises(
        PlanError, match=r"rows \(4, 5\) of window 0 are needed, but no side computes them"
    ):
        Splitter(sharing).evaluate(rows, 1e3)


def test_what_has_to_be_sent_cannot_be_over_a_link_that_carries_nothing():
    sharing = chain(2)
    assert times(sharing, steps(Shares(sharing), plain(sharing, 5)), 0.0) is None
    with pytest.raises(PlanError, match="the link carries nothing"):
        Splitter(sharing).evaluate(plain(sharing, 5), 0.0)


@pytest.mark.parametrize(
    "bad", [{"operators": ()}, {"bytes_per_s": -1.0}, {"bytes_per_s": float("nan")}]
)
def test_problems_that_make_no_sense_are_refused(bad):
    with pytest.raises(PlanError):
        OffloadProblem(**{"operators": chain().operators, "bytes_per_s": 1.0, **bad})


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_another_helper_never_makes_it_worse_and_every_side_has_what_it_uses(seed):
    draw = random.Random(seed)
    sharing = with_another_helper(branched(draw), draw)
    splitter, rate = Splitter(sharing), sharing.bytes_per_s
    best = splitter.share(rate)
    for sides in ((0, 1), (0, 2)):
        assert best.latency_s <= Splitter(sharing.among(sides)).share(rate).latency_s + 1e-12
    any_rows = [((0, sharing.operators[0].count), NONE, NONE)]
    for operator in sharing.operators[1:-1]:
        a, b = sorted(draw.randint(0, operator.count) for _ in range(2))
        if not operator.divisible:
            a, b = (a > 0) * operator.count, ((a > 0) or (b > 0)) * operator.count
        any_rows.append(((0, a), (a, b), (b, operator.count)))
    for divisions in (best.divisions, [*any_rows, ((0, 1), NONE, NONE)]):
        check_steps(splitter.shares, steps(splitter.shares, divisions))


def check_steps(shares: Shares, todo) -> None:
    """Every step finds all rows that it takes on its side, made or received by steps that it waits
    for.
    """
    have = [[set() for _ in shares.operators] for _ in shares.sides]
    have[DEVICE][0] = set(range(shares.operators[0].count))
    for number, step in enumerate(todo):
        assert all(before < number for before in step.after)
        for place, (start, stop) in step.rows:
            rows = set(range(start, stop))
            if step.to is not None:
                assert rows <= have[step.side][place]
                have[step.to][place] |= rows
                continue
            for source, read in shares.reads(place, (start, stop)):
                assert set(range(*read)) <= have[step.side][source]
            have[step.side][place] |= rows
    assert have[DEVICE][shares.last]
