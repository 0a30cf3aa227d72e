"""Who takes over: single steps whole, and then every interleaving that a search comes to."""

import random

import pytest
from tests.sdk.coordinator.in_memory import new_keys
from tests.sdk.coordinator.interleavings import (
    Broken,
    acting,
    after,
    in_sync,
    search,
    settled,
    walk,
    world,
)

from potluck.coordinator.coordinator_group import MAX_SEATS
from potluck.coordinator.succession import (
    ACTING,
    ASKING,
    FOLLOWING,
    HELD_S,
    LAG_S,
    LEASE_S,
    PROMISE_S,
    RENEW_S,
    STAGGER_S,
    TAKING,
    AskVoters,
    Begin,
    End,
    Follow,
    Grew,
    JournalReport,
    LeaderAnswered,
    Pulled,
    Record,
    Resign,
    Succession,
    Tick,
    Voted,
)
from potluck.coordinator.succession_driver import as_text, read_record
from potluck_agent.core.leases import LeaseTable
from potluck_wire.frames import encode
from potluck_wire.limits import MAX_INT, MAX_STR_BYTES
from potluck_wire.messages import Lease

VOTERS = ("d0", "d1", "d2")
HOMES = [(2, 1), (2, 2), (2, 3), (3, 3), (3, 4), (2, 5)]  # coordinators, devices


def yes(voter, number, term, record=None, ballot=(0, 0)):
    return Voted(voter, number, True, term, LEASE_S, ballot, record)


def no(voter, number, term, record=None, ballot=(0, 0), left_s=0.0):
    return Voted(voter, number, False, term, left_s, ballot, record)


def leads(*others, n_voters=3, position=100):
    """One that acts since 0 s in term 1, where these copies count beside its own."""
    machine = Succession("A", 0, VOTERS[:n_voters], reached=position)
    record = Record("B", ("A", *others))
    machine.handle(Tick(), 0.0)
    for voter in VOTERS[: machine.n_to_take]:
        machine.handle(yes(voter, 1, 1, record, (0, 1)), 0.0)
    for voter in VOTERS[: machine.n_to_keep]:
        machine.handle(yes(voter, 2, 1), 0.0)
    assert machine.role == ACTING
    return machine


# --- single steps ---------------------------------------------------------------------------------


def test_it_asks_once_it_has_not_heard_of_who_acts_for_as_long_as_the_lease():
    machine = Succession("B", 1, VOTERS)
    assert machine.handle(LeaderAnswered("A", 3), 10.0) == []
    waits_s = LEASE_S + STAGGER_S
    assert machine.handle(Tick(), 10.0 + waits_s - 0.1) == []
    assert machine.handle(Tick(), 10.0 + waits_s) == [AskVoters(1, 4, 0, PROMISE_S, None)]
    assert machine.role == ASKING


def test_a_majority_promises_then_it_writes_that_it_acts_and_then_acts():
    machine = Succession("B", 1, VOTERS, reached=70)
    before, record = Record("A", ("A", "B")), Record("B", ("A", "B"))
    machine.handle(Tick(), 0.0)
    assert machine.handle(yes("d0", 1, 1, before, (0, 1)), 0.1) == []
    assert machine.handle(yes("d0", 1, 1, before, (0, 1)), 0.1) == []  # the same one again
    assert machine.handle(yes("d2", 1, 1), 0.2) == [AskVoters(2, 1, 1, LEASE_S, record)]
    assert machine.role == TAKING
    assert machine.handle(yes("d1", 2, 1), 0.3) == []
    assert machine.handle(yes("d2", 2, 1), 0.3) == [Begin(1)]
    assert machine.held_until_s == 0.2 + HELD_S  # from when it asked


def test_a_copy_that_does_not_count_does_not_take_over_and_says_so():
    machine = Succession("B", 1, VOTERS)
    machine.handle(Tick(), 0.0)
    machine.handle(yes("d0", 1, 1, Record("A", ("A", "B")), (1, 1)), 0.1)
    assert machine.handle(yes("d1", 1, 1, Record("A", ("A",)), (1, 2)), 0.1) == [Follow("A")]
    assert machine.role == FOLLOWING
    assert machine.why == "its copy is older than what was told; complete ones: A."


def test_nobody_but_the_founder_begins_where_nothing_was_written():
    for founds in (False, True):
        machine = Succession("A", 0, VOTERS, founds=founds)
        machine.handle(Tick(), 0.0)
        machine.handle(yes("d0", 1, 1), 0.1)
        actions = machine.handle(yes("d1", 1, 1), 0.1)
        assert actions == [AskVoters(2, 1, 1, LEASE_S, Record("A", ("A",)))] * founds


def test_refused_by_a_majority_it_waits_for_the_lease_to_end_and_follows_its_holder():
    machine = Succession("B", 1, VOTERS)
    machine.handle(Tick(), 0.0)
    record = Record("C", ("B", "C"))
    assert machine.handle(no("d0", 1, 7, record, (7, 2), 3.0), 0.1) == []
    assert machine.handle(no("d1", 1, 7, record, (7, 2), 2.0), 0.1) == [Follow("C")]
    again_s = 0.1 + 3.0 + STAGGER_S
    assert machine.handle(Tick(), again_s - 0.1) == []
    assert machine.handle(Tick(), again_s) == [AskVoters(2, 8, 0, PROMISE_S, None)]


@pytest.mark.parametrize("left_s", [60.0, 2.0**53])
def test_a_device_that_lies_about_a_lease_is_waited_for_no_longer_than_one_lasts(left_s):
    machine = Succession("A", 0, VOTERS[:2])
    machine.handle(Tick(), 0.0)
    machine.handle(no("d0", 1, 1, left_s=left_s), 0.0)
    assert machine.role == FOLLOWING
    assert machine.handle(Tick(), LEASE_S) == [AskVoters(2, 2, 0, PROMISE_S, None)]


def asks():
    machine = Succession("A", 0, VOTERS[:2], founds=True)
    machine.handle(Tick(), 0.0)
    return machine


LAST_TERM = 2**53  # that a message can carry
LIES = {
    "while it asks": (asks, no("d0", 1, LAST_TERM)),
    "while it acts": (lambda: leads(n_voters=2), no("d0", 2, LAST_TERM)),
    "as one that acts": (
        lambda: Succession("A", 0, VOTERS[:2], founds=True),
        LeaderAnswered("B", LAST_TERM),
    ),
}


@pytest.mark.parametrize(("begin", "lie"), LIES.values(), ids=LIES)
def test_one_lie_about_terms_does_not_keep_it_from_acting_for_ever(begin, lie):
    machine, now_s = begin(), 0.5
    machine.handle(lie, now_s)
    while machine.role != ACTING and now_s < 60.0:
        now_s += 0.1
        for action in machine.handle(Tick(), now_s):
            while isinstance(action, AskVoters):
                assert action.term < LAST_TERM / 1000
                record = Record("A", ("A",))
                answers = [
                    yes(voter, action.number, action.term, record, (0, 1)) for voter in VOTERS[:2]
                ]
                done = [each for answer in answers for each in machine.handle(answer, now_s)]
                action = next((each for each in done if isinstance(each, AskVoters)), None)
    assert machine.role == ACTING


def test_without_answers_it_asks_again_in_a_newer_term():
    machine = Succession("A", 0, VOTERS)
    machine.handle(Tick(), 0.0)
    assert machine.handle(Tick(), PROMISE_S) == []
    assert machine.role == FOLLOWING
    assert machine.handle(Tick(), 2 * PROMISE_S) == [AskVoters(2, 2, 0, PROMISE_S, None)]


def test_it_renews_every_second_and_ends_once_the_lease_is_over():
    machine = leads()
    assert machine.handle(Tick(), RENEW_S - 0.1) == []
    renews = AskVoters(3, 1, 1, LEASE_S, Record("A", ("A",)))
    assert machine.handle(Tick(), RENEW_S) == [renews]
    assert machine.held_until_s == HELD_S  # nobody has answered yet
    assert machine.handle(Tick(), HELD_S) == [End("too few devices renewed its lease.")]
    assert machine.handle(yes("d0", 3, 1), HELD_S) == []


def test_one_that_stood_still_beyond_its_lease_ends_before_anything_else():
    machine = leads("B")
    assert machine.handle(Pulled("B", 100), 60.0) == [End("too few devices renewed its lease.")]


def test_of_two_devices_one_is_enough_to_keep_and_both_are_needed_to_take():
    machine = leads(n_voters=2)
    machine.handle(Tick(), RENEW_S)
    machine.handle(yes("d1", 3, 1), RENEW_S)
    assert machine.held_until_s == RENEW_S + HELD_S
    assert (machine.n_to_take, machine.n_to_keep) == (2, 1)


def test_a_newer_term_ends_it():
    machine = leads()
    machine.handle(Tick(), RENEW_S)
    assert machine.handle(no("d2", 3, 9), RENEW_S) == [End("another one acts in a newer term.")]


def test_what_every_copy_that_counts_has_may_be_told():
    machine = leads("B", "C")
    assert machine.handle(Pulled("B", 90), 0.1) == []
    assert machine.handle(Pulled("C", 80), 0.1) == [JournalReport(80)]
    assert machine.handle(Grew(120), 0.2) == []
    assert machine.handle(Pulled("C", 120), 0.3) == [JournalReport(90)]


def test_a_copy_that_lags_counts_until_devices_know_that_it_does_not():
    machine = leads("B", "C")
    machine.handle(Pulled("B", 100), 3.0)
    machine.handle(Tick(), 3.0)
    for voter in VOTERS:
        machine.handle(yes(voter, 3, 1), 3.0)
    without = AskVoters(4, 1, 2, LEASE_S, Record("A", ("A", "B")))
    assert machine.handle(Tick(), LAG_S + 0.1) == [without]
    assert machine.handle(yes("d0", 4, 1), LAG_S + 0.1) == []
    assert machine.handle(yes("d1", 4, 1), LAG_S + 0.1) == [JournalReport(100)]


def test_a_copy_that_has_caught_up_counts_from_now_on():
    machine = leads()
    assert machine.handle(Grew(110), 0.1) == [JournalReport(110)]
    assert machine.handle(Pulled("B", 100), 0.2) == []
    counts = AskVoters(3, 1, 2, LEASE_S, Record("A", ("A", "B")))
    assert machine.handle(Pulled("B", 110), 0.3) == [counts]
    assert machine.handle(Grew(120), 0.4) == []  # its copy is needed before devices know it
    assert machine.handle(Pulled("B", 120), 0.5) == [JournalReport(120)]


def test_one_that_keeps_up_with_a_journal_that_grows_comes_to_count():
    machine = leads()
    machine.handle(Grew(110), 0.1)
    assert machine.handle(Pulled("B", 0), 0.2) == []
    assert machine.handle(Grew(120), 0.3) == [JournalReport(120)]
    assert machine.handle(Pulled("B", 110), 0.4) == []  # all that there was when it asked before
    assert machine.handle(Grew(130), 0.5) == []  # waits for it
    counts = AskVoters(3, 1, 2, LEASE_S, Record("A", ("A", "B")))
    assert machine.handle(Pulled("B", 120), 0.6) == [counts]
    assert machine.handle(Pulled("B", 130), 0.8) == [JournalReport(130)]


def test_one_that_was_to_count_and_lags_is_not_waited_for():
    machine = leads()
    machine.handle(Pulled("B", 0), 0.0)
    machine.handle(Grew(110), 0.1)
    machine.handle(Pulled("B", 100), 0.2)
    assert machine.handle(Grew(120), 0.3) == []
    for second in range(1, 6):
        machine.handle(Tick(), float(second))
        actions = machine.handle(yes("d0", number_in(second), 1), float(second))
        actions += machine.handle(yes("d1", number_in(second), 1), float(second))
        assert actions == [JournalReport(120)] * (second == 5)


def number_in(second):
    return second + 2  # two questions came before


def test_who_resigns_gives_the_lease_back():
    machine = leads("B")
    gives = AskVoters(3, 1, 1, 0.0, Record("A", ("A", "B")))
    assert machine.handle(Resign(), 1.0) == [gives, End("")]


def test_an_older_coordinator_that_is_back_is_not_followed():
    machine = Succession("C", 2, VOTERS)
    machine.handle(LeaderAnswered("B", 5), 0.0)
    machine.handle(LeaderAnswered("A", 4), 1.0)
    assert machine.leader == "B"


# --- interleavings --------------------------------------------------------------------------------


def begins(n_coordinators, n_devices, kind=Succession):
    """Worlds from where much is near: all well, who acts gone, a device gone, a copy that lags."""
    well = settled(world(n_coordinators, n_devices, kind))
    crashed = after(well, ("crash", "A"))
    late = after(well, ("wait", 4.5))
    return [world(n_coordinators, n_devices, kind), well, crashed, after(well, ("off", "d0")), late]


def check_every_near_one(n_coordinators, n_devices, most):
    found = search(begins(n_coordinators, n_devices), most)
    assert found.n_worlds >= most
    assert found.n_terms >= 2
    return found


@pytest.mark.long
@pytest.mark.parametrize(("n_coordinators", "n_devices"), [(2, 2), (3, 3)])
def test_near_worlds_whatever_the_order_nothing_told_is_lost_and_never_two_act(
    n_coordinators, n_devices
):
    check_every_near_one(n_coordinators, n_devices, 4_000)


@pytest.mark.long
@pytest.mark.parametrize(("n_coordinators", "n_devices"), HOMES)
def test_more_of_them(n_coordinators, n_devices):
    for sample in check_every_near_one(n_coordinators, n_devices, 150_000).samples:
        check_progress(sample)


def check_progress(w):
    """With all devices, somebody acts and tells all; so does another, where its copy counts."""
    calm = settled(w)
    (name,) = acting(calm)
    assert calm.announced == calm.coordinators[name].log
    for gone in w.coordinators:
        if set(in_sync(w)) - {gone}:
            assert len(acting(settled(w, gone))) == 1, (gone, w)


def go_far(n_walks, n_steps, seed):
    for number in range(n_walks):
        rng = random.Random(f"{seed}/{number}")
        begin = world(*rng.choice(HOMES))
        w = walk(settled(begin) if number % 2 else begin, n_steps, rng)
        if number % 10 == 0:
            check_progress(w)


def test_far_ones_too_and_with_a_majority_somebody_always_acts_again():
    go_far(60, 300, 0)


@pytest.mark.long
def test_more_of_the_far_ones():
    go_far(10_000, 500, 1)


def go_on(well, first):
    """Walks from the `first` on, which is one of the last in vain: those before it take seconds."""
    for seed in range(first, 1_000):
        walk(well, 500, random.Random(seed))


class TakesAnyCopy(Succession):
    """Takes over without a look at whose copies count."""

    def _take(self, now_s):
        if self._latest is not None:
            ballot, known = self._latest
            self._latest = ballot, Record(known.leader, (*known.in_sync, self.me))
        super()._take(now_s)


class ForgetsAtOnce(Succession):
    """Does without a copy that lags before devices know."""

    def _write(self, in_sync, now_s):
        super()._write(in_sync, now_s)
        self._needed = frozenset(in_sync) - {self.me}


class TakesHalf(Succession):
    """Half of the devices is enough."""

    n_to_take = property(lambda self: len(self.voters) // 2)
    n_to_keep = n_to_take


class ForgetsTheLease(Succession):
    """Does not look at the clock."""

    def handle(self, event, now_s):
        if self.role == ACTING:
            self.held_until_s = now_s + LEASE_S
        return super().handle(event, now_s)


@pytest.mark.parametrize(
    ("kind", "n_coordinators", "n_devices", "first"),
    [
        (TakesAnyCopy, 3, 3, 70),
        (TakesHalf, 2, 3, 20),
        (ForgetsTheLease, 3, 3, 20),
        (ForgetsAtOnce, 2, 3, 165),
    ],
)
def test_the_search_finds_what_is_wrong(kind, n_coordinators, n_devices, first):
    well = settled(world(n_coordinators, n_devices, kind))
    with pytest.raises(Broken):
        go_on(well, first)


class ForgetsWhatIsHeld(LeaseTable):
    """Keeps its latest leases, whoever has them: a stranger's drive out those that are held."""

    def _keep(self, kept, until_s, now_s):
        rest = {name: each for name, each in self._kept.items() if name != kept.name}
        newest = dict(list(rest.items())[1 - self._max_leases :])
        until = {name: self._until_s[name] for name in newest}
        self._kept, self._until_s = {**newest, kept.name: kept}, {**until, kept.name: until_s}
        return True


def test_the_search_finds_a_device_that_forgets_what_is_held():
    with pytest.raises(Broken):
        go_on(settled(world(3, 3, table=ForgetsWhatIsHeld)), 390)


# --- what others make up --------------------------------------------------------------------------


KEYS = [new_keys().public for _ in range(20)]


def made_up(rng, machine):
    """Anything that a device or another coordinator may say."""
    in_sync = [KEYS[0]] * (rng.random() < 0.8) + rng.sample(
        KEYS[MAX_SEATS:], rng.choice((0, 7, 10))
    )
    text = as_text(Record(rng.choice(KEYS), tuple(in_sync)))
    record = read_record(text) if len(text) <= MAX_STR_BYTES else None
    ballot = rng.choice((0, 1, MAX_INT)), rng.choice((0, 1, MAX_INT))
    number = len(machine.asked)
    term = rng.choice((0, *[machine.term] * 6, machine.term + 1, MAX_INT))
    return rng.choice(
        (
            Tick(),
            *[yes(rng.choice(VOTERS), number, term, record, ballot)] * 4,
            no(rng.choice(VOTERS), number, term, record, ballot, left_s=rng.choice((-1e15, 1e15))),
            Pulled(rng.choice(KEYS[1:MAX_SEATS]), rng.choice((0, 100, MAX_INT))),
            LeaderAnswered(rng.choice(KEYS), term),
        )
    )


@pytest.mark.long
def test_whatever_is_made_up_all_that_is_asked_of_devices_can_be_said(record_property):
    """One record that a device made up and another key do not make one that no message holds."""
    n_sequences, n_acted = 600, 0
    for seed in range(n_sequences):
        rng, now_s = random.Random(seed), 0.0
        machine = Succession(KEYS[0], 0, VOTERS, reached=100, founds=rng.random() < 0.5)
        machine.asked = []
        for _ in range(40):
            now_s += rng.choice((0.0, 0.0, 0.1, 1.0))
            actions = machine.handle(made_up(rng, machine), now_s)
            n_acted += any(isinstance(action, Begin) for action in actions)
            for action in actions:
                if isinstance(action, AskVoters):
                    machine.asked.append(action)
                    record = as_text(action.record) if action.record is not None else ""
                    encode(
                        Lease(
                            task="t",
                            name="l",
                            term=action.term,
                            serial=action.serial,
                            lasts_s=action.lasts_s,
                            record=record,
                        )
                    )
    assert n_acted > 20
    record_property("inputs", n_sequences)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 2000, "1" * 5000, '["x"]', as_text(Record("A", ()))]
)
def test_what_is_no_record_counts_for_nothing(text):
    assert read_record(text) is None
    assert read_record(as_text(Record(KEYS[0], tuple(KEYS[: MAX_SEATS + 1])))) is None
    assert read_record(as_text(Record(KEYS[0], tuple(KEYS[:MAX_SEATS])))) is not None
