"""Sharing one request between a device and a helper: worked by hand, against every division, and at the edges."""

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import PlanError
from potluck.plan.sharing import Division, Operator, Shares, Sharing, intervals
from potluck.plan.split import alone_on_device, evaluate, front, share


@dataclass(frozen=True)
class Window:
    """A window of rows around each row."""

    count: int
    reach: int = 0

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        return max(start - self.reach, 0), min(stop + self.reach, self.count)


def chain(
    n: int = 4, *, count: int = 10, reach: int = 0, row_bytes: int = 100, device_s: float = 1.0, helper_s: float = 0.5,
    bytes_per_s: float = 1e3, latency_s: float = 0.0, tail_s: float = 0.0, **link: float,
) -> Sharing:  # fmt: skip
    """`n` operators with windows, then (with `tail_s`) one that needs every row; the result has 1 row of 10 bytes."""
    operators = [Operator(name="input", count=count, row_bytes=row_bytes)]
    for i in range(n):
        operators.append(
            Operator(
                name=f"window {i}", count=count, row_bytes=row_bytes, device_s=device_s, helper_s=helper_s,
                inputs=((i, Window(count, reach)),),
            )
        )  # fmt: skip
    operators.append(
        Operator(name="head", count=1, row_bytes=10, device_s=tail_s, helper_s=tail_s / 2, inputs=((n, None),))
    )
    operators.append(Operator(name="result", count=1, row_bytes=10, inputs=((n + 1, None),)))
    return Sharing(operators=tuple(operators), bytes_per_s=bytes_per_s, latency_s=latency_s, **link)


def test_rows_are_needed_ever_further_out_towards_the_input():
    assert intervals(chain(3, reach=1), 3, (4, 5)) == {3: (4, 5), 2: (3, 6), 1: (2, 7), 0: (1, 8)}


def test_a_split_worked_by_hand():
    # The helper takes rows 6 to 10 of the input: 400 bytes, 0.4 s on the link, plus 0.1 s latency. It computes a tile
    # of a quarter as soon as a quarter is there, so it is done 4 x 0.4 x 0.5 = 0.8 s after 0.1 + 0.1 s: at 1.0 s.
    # The device computes its 6 rows in 4 x 0.6 = 2.4 s; the helper's rows come back meanwhile, 0.4 s from 1.0 on.
    # The head needs all: the device does it in 1 s, at 3.4 s; the result is there.
    shares = Shares(chain(4, latency_s=0.1, tail_s=1.0, busy_w=10, radio_w=3, idle_w=2))
    split = evaluate(shares, [Division(0, 10, 10), Division(4, 6, 6), Division(6, 1, 1)])
    assert split.latency_s == pytest.approx(3.4)
    assert (split.sent_bytes, split.received_bytes) == (400, 400)
    # 3.4 s at 2 W, 3.4 s of them computing at 8 W more, 0.8 s of radio at 3 W
    assert split.energy_j == pytest.approx(3.4 * 2 + 3.4 * 8 + 0.8 * 3)


def test_without_a_link_the_device_does_it_all():
    split = share(chain(bytes_per_s=0.0))
    assert split.latency_s == pytest.approx(4.0)
    assert (split.sent_bytes, split.received_bytes) == (0, 0)


def test_over_an_endless_link_a_helper_that_is_much_faster_does_nearly_all():
    split = share(chain(helper_s=1e-3, bytes_per_s=1e12))
    assert split.latency_s < 0.01


def layer_cuts(shares):
    """Every way to run the front on the device and the rest on the helper."""
    start, *inner, end = shares.joints
    for joint in (start, *inner[:-1]):
        count = shares.sharing.operators[joint].count
        front_part = [Division(joint, count, count)] if joint else []
        yield [Division(0, 10, 10), *front_part, Division(inner[-1], 0, 0), Division(end, 1, 1)]


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_never_worse_than_either_alone_or_any_cut_between_operators(seed):
    draw = random.Random(seed)
    sharing = chain(
        draw.randint(1, 6), count=draw.randint(2, 30), reach=draw.randint(0, 2), device_s=draw.uniform(0.1, 2),
        helper_s=draw.uniform(0.01, 2), bytes_per_s=10 ** draw.uniform(1, 5), latency_s=draw.uniform(0, 0.1),
        tail_s=draw.random(),
    )  # fmt: skip
    shares = Shares(sharing)
    best = share(shares).latency_s
    for divisions in [alone_on_device(shares), *layer_cuts(shares)]:
        assert best <= evaluate(shares, divisions).latency_s + 1e-12


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_as_good_as_the_best_of_all_divisions(seed):
    draw = random.Random(seed)
    sharing = chain(
        2, count=4, reach=draw.randint(0, 1), helper_s=draw.uniform(0.05, 1), bytes_per_s=10 ** draw.uniform(2, 4),
        latency_s=draw.uniform(0, 0.05), tail_s=draw.random(),
    )  # fmt: skip
    shares = Shares(sharing)
    inner, last = shares.joints[1:-1], shares.joints[-1]
    best = float("inf")
    for n in range(len(inner) + 1):
        for joints in itertools.combinations(inner, n):
            for path in itertools.product(*(shares.divisions(joint, 5) for joint in joints)):
                best = min(best, evaluate(shares, [Division(0, 4, 4), *path, Division(last, 1, 1)]).latency_s)
    assert share(shares, levels=5).latency_s <= best + 1e-12


def test_a_deadline_buys_energy_and_the_front_runs_from_fast_to_frugal():
    sharing = chain(helper_s=0.1, bytes_per_s=2e3, busy_w=10, radio_w=4, idle_w=1)
    fastest = share(sharing)
    frugal = share(sharing, deadline_s=2 * fastest.latency_s)
    assert frugal.latency_s <= 2 * fastest.latency_s
    assert frugal.energy_j <= fastest.energy_j
    splits = front(sharing)
    assert [s.latency_s for s in splits] == sorted(s.latency_s for s in splits)
    assert [s.energy_j for s in splits] == sorted((s.energy_j for s in splits), reverse=True)


def test_a_deadline_that_nothing_holds_says_how_soon_it_could_be():
    with pytest.raises(PlanError, match=r"no split answers within 100\.0 ms; the fastest takes \d+\.\d ms"):
        share(chain(), deadline_s=0.1)


def test_more_bandwidth_never_hurts():
    times = [share(chain(reach=1, bytes_per_s=rate, latency_s=0.01)).latency_s for rate in (0, 1e2, 1e3, 1e4, 1e5)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("bad", [{"operators": ()}, {"bytes_per_s": -1.0}])
def test_problems_that_make_no_sense_are_refused(bad):
    with pytest.raises(PlanError):
        Sharing(**{"operators": chain().operators, "bytes_per_s": 1.0, **bad})
