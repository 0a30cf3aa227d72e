"""What goes first where room is needed, and whose."""

import random

import pytest

from potluck_agent.core import weight_cache
from potluck_agent.core.weight_cache import WeightCache

A, B = "A" * 40, "B" * 40


def content(number):
    return number.to_bytes(32, "big")


class Kept(WeightCache):
    """One whose loaded runs are set by hand."""

    def __init__(self, limit_bytes):
        self.runs = set()
        super().__init__(limit_bytes, "", lambda: self.runs)

    def keep(self, owner, number, nbytes=10, run=""):
        ticket, gone = self.begin(owner, content(number), nbytes, run)
        if ticket:
            self.end(ticket, is_whole=True)
        return [(key, int.from_bytes(what, "big")) for key, what in gone]

    def numbers(self, owner):
        return [i for i in range(100) if content(i) in self.contents(owner)]


def test_the_least_recently_used_goes_first():
    kept = Kept(30)
    for i in (1, 2, 3):
        kept.keep(A, i)
    assert kept.has(A, content(1), "")
    assert kept.keep(A, 4) == [(A, 2)]
    assert kept.numbers(A) == [1, 3, 4]


def test_what_a_loaded_run_uses_stays_and_then_nothing_more_is_kept():
    kept = Kept(20)
    kept.runs = {"r"}
    kept.keep(A, 1, run="r")
    kept.keep(A, 2, run="s")
    assert kept.keep(A, 3, run="r") == [(A, 2)]
    assert kept.keep(A, 4, run="t") == []
    assert kept.numbers(A) == [1, 3]
    kept.runs = set()
    assert kept.keep(A, 4) == [(A, 1)]


def test_a_flood_of_one_notebook_drives_out_its_own():
    kept = Kept(100)
    for i in range(3):
        kept.keep(A, i)
    for i in range(10, 60):
        kept.keep(B, i)
    assert kept.numbers(A) == [0, 1, 2]
    assert kept.used_bytes == 100


def test_a_flood_of_small_ones_drives_out_its_own(monkeypatch):
    monkeypatch.setattr(weight_cache, "MAX_ENTRIES", 10)
    kept = Kept(10**6)
    for i in range(3):
        kept.keep(A, i, nbytes=10**5)
    for i in range(10, 60):
        kept.keep(B, i, nbytes=1)
    assert kept.numbers(A) == [0, 1, 2]
    assert len(kept.numbers(B)) == 7


def test_who_comes_later_gets_its_part_of_a_full_disk():
    kept = Kept(100)
    for i in range(10):
        kept.keep(A, i)
    for i in range(10, 20):
        kept.keep(B, i)
    assert (len(kept.numbers(A)), len(kept.numbers(B))) == (5, 5)


def test_a_notebook_that_keeps_as_much_as_another_makes_room_by_its_own():
    for first, second in ((A, B), (B, A)):
        kept = Kept(40)
        for number, owner in enumerate((first, first, second, second)):
            kept.keep(owner, number)
        assert kept.keep(first, 4) == [(first, 0)]
        assert kept.keep(second, 5) == [(second, 2)]


class CountedRuns(set):
    """The runs that are loaded; counts how often somebody looks."""

    n_looks = 0

    def __contains__(self, run):
        self.n_looks += 1
        return super().__contains__(run)


@pytest.mark.parametrize("n_loaded", [0, 900])
def test_making_room_for_one_looks_at_each_other_once(n_loaded):
    """However many small ones have to go for one large one: nobody else is answered meanwhile."""
    kept = Kept(1000)
    kept.runs = CountedRuns({"loaded"})
    for i in range(1000):
        kept.keep(A, i, nbytes=1, run="loaded" if i < n_loaded else "")
    assert len(kept.keep(B, 10**4, nbytes=500)) == (0 if n_loaded else 500)
    assert kept.runs.n_looks <= 1000


def test_what_is_larger_than_all_the_room_changes_nothing():
    kept = Kept(30)
    kept.keep(A, 1)
    assert kept.keep(A, 2, nbytes=31) == []
    assert kept.numbers(A) == [1]


def test_what_is_on_its_way_to_the_disk_is_not_found_and_not_driven_out():
    kept = Kept(20)
    ticket, _ = kept.begin(A, content(1), 15, "")
    assert not kept.has(A, content(1), "")
    assert kept.begin(A, content(1), 15, "") == (0, [])
    assert kept.begin(A, content(2), 15, "") == (0, [])
    kept.end(ticket, is_whole=False)
    assert kept.used_bytes == 0


@pytest.mark.parametrize("times", [1, 2])
def test_an_end_that_nobody_waits_for_changes_nothing(times):
    kept = Kept(20)
    kept.keep(A, 1)
    for _ in range(times):
        kept.end(1, is_whole=False)
    assert kept.numbers(A) == [1]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_goes_for_what_cannot_be_kept(seed, monkeypatch):
    """Whoever keeps how much, and whatever of it is in use."""
    rng = random.Random(seed)
    monkeypatch.setattr(weight_cache, "MAX_ENTRIES", rng.choice((5, 1000)))
    kept = Kept(100)
    n_refused = 0
    for number in range(60):
        owner, nbytes = rng.choice((A, B)), rng.randrange(1, 60)
        before = {key: kept.contents(key) for key in (A, B)}
        kept.runs = {rng.choice("rs")}
        ticket, gone = kept.begin(owner, content(number), nbytes, rng.choice("rst"))
        if ticket:
            kept.end(ticket, is_whole=rng.random() < 0.9)
        else:
            n_refused += 1
            assert (gone, {key: kept.contents(key) for key in (A, B)}) == ([], before)
        assert kept.used_bytes <= 100
        assert kept.n_entries <= weight_cache.MAX_ENTRIES
    assert n_refused
