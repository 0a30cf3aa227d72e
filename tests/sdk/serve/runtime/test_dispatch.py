"""What becomes of requests whose devices refuse, die and fail by chance: each is answered rightly,
or refused, exactly once. The devices are scripted; the decisions are those of a home.
"""

from concurrent.futures import Future
from dataclasses import replace
from random import Random

import pytest
from tests.sdk.serve.serving import allocation, service
from tests.timeouts import TIMEOUT_S

from potluck.errors import DeviceGone, NotServed, PotluckError, RequestFailed, WorkerFailed
from potluck.serve.runtime.dispatch import Dispatch
from potluck.serve.scheduling.fair_queueing import AT_ONCE
from potluck.serve.scheduling.records import Latency
from potluck.serve.scheduling.replica_pools import Pool
from potluck_wire.request_handler import Way

torch = pytest.importorskip("torch")
POISON = -1.0
BUSY = 1e6  # values from here on only keep devices busy
QUEUE = 1024
BATCHES = {"fast": 8, "slow": 2}  # the most rows of a device of each kind


def refused(reason):
    return NotServed("no.", reason=reason, limit_s=None, soonest_s=None)


class ScriptedDevice:
    """Has the service."""

    def __init__(self, name, batch):
        self.devices, self.batch = (name,), batch
        self.is_lost = self.is_leaving = False
        self.n_under_way = 0

    def close(self):
        self.is_lost = True


class ScriptedAnswer:
    """What comes, once the test lets it."""

    def __init__(self, device, rows):
        self.devices, self.rows = (device,), rows
        self.future = Future()

    def on_done(self, callback):
        self.future.add_done_callback(callback)

    def wait(self):
        return [self.future.result()]


class ScriptedHome:
    """A dispatch with scripted devices, of two kinds. `does(device, x)`: an error for these rows,
    or None: they are doubled.
    """

    def __init__(self, does, fast=("a", "b"), slow=("c",), limit_s=1e6, *, anew=False, **how):
        self.does = does
        self.calls, self.asked = [], []
        self.dispatch = Dispatch(self.compute, is_placed_anew=anew, **how)
        self.record = replace(service(slo=Latency(limit_s)), max_queue=QUEUE)
        self.dispatch.add(self.record)
        self.kinds = {"fast": fast, "slow": slow}
        self.place()

    def place(self):
        pools = []
        for kind, names in self.kinds.items():
            known, batch = allocation(), BATCHES[kind]
            variant = replace(known.variant, kind=kind)
            batch_s = known.batch_s[: batch + 1]
            each = replace(known, variant=variant, batch=batch, batch_s=batch_s)
            loaded = [
                self.dispatch.loaded("birds", (name,)) or ScriptedDevice(name, batch)
                for name in names
            ]
            if loaded:
                pools.append((Pool(each, len(names)), loaded))
        self.dispatch.place(pools)

    def place_anew(self):
        """As whoever watches for what is lost does."""
        self.dispatch.lost.clear()
        self.place()
        self.dispatch.placed_anew()

    def compute(self, name, loaded, inputs, rows, left_s):
        assert rows <= loaded.batch
        (x,) = inputs
        self.asked += [(loaded.devices[0], value) for value in x[:, 0].tolist()]
        answer = ScriptedAnswer(loaded.devices[0], x)
        self.calls.append(answer)
        return answer

    def ask(self, *values):
        x = torch.tensor(values)[:, None]
        pending = self.dispatch.ask("birds", [x], len(values), lambda outputs: outputs[0])
        return pending, 2 * x

    def go_on(self, random=None):
        """Until nothing is under way."""
        while self.calls:
            call = self.calls.pop(random.randrange(len(self.calls)) if random else 0)
            if (error := self.does(call.devices[0], call.rows)) is None:
                call.future.set_result(2 * call.rows)
            else:
                call.future.set_exception(error)


def outcome(pending):
    """Its answer, or why there is none."""
    return pending.future.exception(TIMEOUT_S) or pending.future.result()


REASONS = ("busy", "leaving", "insufficient", "peer-lost", "not-granted", "worker-crashed", "late")


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_each_request_is_answered_rightly_or_refused_once_whatever_devices_do(seed, anew):
    random = Random(seed)

    def does(device, x):
        if POISON in x:
            return RequestFailed("it cannot be.", device=device)
        kinds = [None] * 6 + [
            refused(random.choice(REASONS)),
            WorkerFailed("it crashed.", device=device),
            DeviceGone("it went.", device=device),
        ]
        return random.choice(kinds)

    home, asked = ScriptedHome(does, anew=anew), []
    for number in range(150):
        values = [1000.0 * number + i for i in range(random.randrange(1, 6))]
        if random.random() < 0.05:
            values[-1] = POISON
        asked.append(home.ask(*values))
        if random.random() < 0.3:
            home.go_on(random)
        if random.random() < 0.2:
            home.place_anew()
    while any(not pending.is_over for pending, _ in asked):
        home.go_on(random)
        home.place_anew()
    stats = home.dispatch.stats("birds")
    n_answered = 0
    for pending, expected in asked:
        found = outcome(pending)
        if isinstance(found, Exception):
            assert isinstance(found, PotluckError)
        else:
            assert torch.equal(found, expected)
            n_answered += 1
    assert 0 < n_answered == stats.n_answered
    assert stats.n_under_way == 0
    assert stats.n_answered + stats.n_refused + stats.n_failed == stats.n_asked == len(asked)


@pytest.mark.parametrize("where", ["putting together", "taking apart"])
@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, ValueError])
def test_what_nobody_foresaw_fails_those_rows_and_keeps_no_device(where, kind):
    """As a lack of memory on the computer that asks."""

    def compute(name, loaded, inputs, rows, left_s):
        if where == "putting together" and POISON in inputs[0]:
            raise kind("no room")
        return sound(name, loaded, inputs, rows, left_s)

    def does(device, x):
        return kind("no room") if where == "taking apart" and POISON in x else None

    home = ScriptedHome(does, fast=("a",), slow=())
    sound, home.dispatch = home.compute, Dispatch(compute)
    home.dispatch.add(home.record)
    home.place()
    for _ in range(8):
        first, (poisoned, _) = home.ask(1.0), home.ask(2.0, POISON)
        last = home.ask(3.0)
        home.go_on()
        found = outcome(poisoned)
        assert isinstance(found, RequestFailed)
        assert f"{kind.__name__}: no room" in str(found)
        for pending, expected in (first, last):
            assert torch.equal(outcome(pending), expected)
    stats = home.dispatch.stats("birds")
    assert (stats.n_answered, stats.n_failed, stats.n_under_way) == (16, 8, 0)


def test_the_rows_of_a_request_are_computed_together():
    home = ScriptedHome(lambda device, x: None, fast=("a",), slow=())
    pending, expected = home.ask(*map(float, range(7)))
    assert [len(call.rows) for call in home.calls] == [7]
    home.go_on()
    assert torch.equal(outcome(pending), expected)


def test_a_full_batch_follows_the_one_before_and_a_smaller_one_waits():
    home = ScriptedHome(lambda device, x: None, fast=("a",), slow=())
    home.ask(0.0)
    home.ask(*[1.0] * 7)
    assert [len(call.rows) for call in home.calls] == [1]
    home.ask(*[2.0] * 9)
    assert [len(call.rows) for call in home.calls] == [1, 8]
    home.calls.pop(0).future.set_result(torch.zeros(1, 1))
    assert [len(call.rows) for call in home.calls] == [8, 8]
    home.go_on()
    assert len(home.asked) == 17


@pytest.mark.parametrize("n_replicas", [1, 2, 4])
def test_full_batches_follow_each_other_on_devices_that_share_a_model(n_replicas):
    home = ScriptedHome(lambda device, x: None, fast=("a",), slow=())
    (held,) = home.dispatch.pools()
    shared = ScriptedDevice("a", BATCHES["fast"])
    shared.devices = ("a", "b")
    home.dispatch.place([(replace(held.pool, n_replicas=n_replicas, way=Way.ACROSS), [shared])])
    asked = [home.ask(*map(float, range(n_rows))) for n_rows in (1, 3 * BATCHES["fast"], 5)]
    assert len(home.calls) == AT_ONCE
    home.go_on()
    for pending, expected in asked:
        assert torch.equal(outcome(pending), expected)


def test_the_next_batch_is_on_its_way_before_callers_get_their_answers():
    given = []
    home = ScriptedHome(lambda device, x: None, fast=("a",), slow=(), later=given.append)
    asked = [home.ask(float(number)) for number in range(2)]
    home.calls.pop(0).future.set_result(torch.zeros(1, 1))
    assert [call.rows.tolist() for call in home.calls] == [[[1.0]]]
    assert not asked[0][0].future.done()
    given.pop()()
    assert asked[0][0].future.done()


def test_answers_that_are_there_are_given_in_their_order_whatever_fails_then(monkeypatch):
    home, order = ScriptedHome(lambda device, x: None, fast=("a",), slow=()), []
    home.ask(0.0)
    asked = [home.ask(float(number)) for number in range(1, 5)]
    for number, (pending, _) in enumerate(asked):
        pending.future.add_done_callback(lambda _, number=number: order.append(number))
    home.calls.pop().future.set_result(torch.zeros(1, 1))
    monkeypatch.setattr(home.dispatch.turns, "give", lambda offered: 1 / 0)
    home.go_on()
    assert order == [0, 1, 2, 3]


def test_rows_before_one_that_is_refused_keep_nobody_waiting():
    home = ScriptedHome(lambda device, x: None, fast=("a",), slow=())
    home.ask(1.0)
    home.ask(*[2.0] * BATCHES["fast"])  # follows it
    home.ask(*[2.0] * (QUEUE - 1))
    refused_one, _ = home.ask(3.0, 4.0)  # its second row finds the queue full
    pending, expected = home.ask(5.0)
    home.go_on()
    assert isinstance(outcome(refused_one), NotServed)
    assert isinstance(outcome(pending), NotServed) or torch.equal(outcome(pending), expected)
    again, expected = home.ask(6.0, 7.0)
    home.go_on()
    assert torch.equal(outcome(again), expected)


@pytest.mark.parametrize("reason", ["busy", "peer-lost", "not-granted", "worker-crashed"])
def test_what_one_device_refuses_another_answers_of_whatever_kind(reason):
    """A batch that a fast device refuses may be larger than what a slow one takes at once."""
    home = ScriptedHome(
        lambda device, x: refused(reason) if device == "a" else None, fast=("a",), slow=("c",)
    )
    asked = [home.ask(*range(1, n)) for n in (2, 10, 5)]
    home.go_on()
    for pending, expected in asked:
        assert torch.equal(outcome(pending), expected)
    assert "a" in {device for device, _ in home.asked}


def test_what_two_devices_refuse_is_refused_and_no_third_is_asked():
    home = ScriptedHome(lambda device, x: refused("busy"), fast=("a", "b", "d"), slow=())
    pending, _ = home.ask(7.0)
    home.go_on()
    assert outcome(pending).facts["reason"] == "busy"
    assert len(home.asked) == len({*home.asked}) == 2


def test_what_is_late_is_not_tried_elsewhere():
    home = ScriptedHome(lambda device, x: refused("late"))
    pending, _ = home.ask(7.0)
    home.go_on()
    assert outcome(pending).facts["reason"] == "timed out"
    assert len(home.asked) == 1


def together(does, *values, names):
    """A home that has begun a request of each value, which are computed together first."""
    home = ScriptedHome(lambda device, x: does(x) if x.max() < BUSY else None, fast=names, slow=())
    for number in range(len(names)):
        home.ask(BUSY + number)
    return home, {value: home.ask(value) for value in values}


def test_a_row_that_is_answered_is_not_asked_for_again_when_its_neighbour_is_lost():
    """Rows that were lost once go one by one: the last one is lost again, the first is not."""
    errors = iter([DeviceGone("it went."), None, DeviceGone("it went.")])
    home, _ = together(lambda x: next(errors, None), names=("a", "b", "d"))
    pending, expected = home.ask(1.0, 2.0, 3.0)
    home.go_on()
    assert torch.equal(outcome(pending), expected)
    asked = [value for _, value in home.asked if value < BUSY]
    assert sorted(asked) == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0]


def test_a_row_that_kills_workers_downstream_does_not_take_its_neighbours_with_it():
    """Whoever has it with others has its worker killed, two devices away."""
    kills = lambda x: refused("worker-crashed") if 3.0 in x else None  # noqa: E731
    home, asked = together(kills, 1.0, 2.0, 3.0, 4.0, names=("a", "b"))
    home.go_on()
    assert isinstance(outcome(asked.pop(3.0)[0]), NotServed)
    for pending, expected in asked.values():
        assert torch.equal(outcome(pending), expected)


def lost_home(limit_s=1e6):
    """Its only device is lost with a request; another one may get the service."""
    home = ScriptedHome(
        lambda device, x: DeviceGone("it went.", device=device) if device == "a" else None,
        fast=("a",),
        slow=(),
        limit_s=limit_s,
        anew=True,
    )
    asked = [home.ask(1.0)]
    home.go_on()
    asked += [home.ask(2.0), home.ask(3.0, 4.0)]
    assert home.dispatch.lost.is_set()
    return home, asked


def test_requests_without_a_device_wait_for_the_one_that_gets_their_service():
    home, asked = lost_home()
    assert not any(pending.is_over for pending, _ in asked)
    home.kinds["fast"] = ("b",)
    home.place_anew()
    home.go_on()
    for pending, expected in asked:
        assert torch.equal(outcome(pending), expected)
    assert home.dispatch.stats("birds").n_refused == 0


@pytest.mark.parametrize("why", ["nobody gets it", "their limit is over", "closed"])
def test_requests_that_wait_for_a_device_are_refused_once(why):
    home, asked = lost_home(0.5 if why == "their limit is over" else 1e6)
    if why == "nobody gets it":
        home.dispatch.lost.clear()
        home.dispatch.placed_anew()
    elif why == "closed":
        home.dispatch.remove("birds")
    for pending, _ in asked:
        assert isinstance(outcome(pending), NotServed)
    home.kinds["fast"] = () if why == "closed" else ("b",)
    home.place_anew()
    home.go_on()
    assert {device for device, _ in home.asked} == {"a"}


def test_no_more_requests_wait_for_a_device_than_the_queue_takes():
    home, asked = lost_home()
    asked += [home.ask(float(i)) for i in range(QUEUE)]
    assert sum(pending.is_over for pending, _ in asked) > 0
    assert sum(not pending.is_over for pending, _ in asked) <= QUEUE
    home.dispatch.lost.clear()
    home.dispatch.placed_anew()
    assert all(isinstance(outcome(pending), NotServed) for pending, _ in asked)


@pytest.mark.parametrize("ends", ["answered", "lost", "failed", "refused"])
def test_what_is_under_way_at_a_close_counts_for_no_other_service_of_its_name(ends):
    errors = {"lost": DeviceGone("it went."), "failed": RequestFailed("no."), "answered": None}
    home = ScriptedHome(lambda device, x: errors.get(ends, refused("busy")))
    asked = [home.ask(float(i), float(-i)) for i in range(10)]
    home.dispatch.remove("birds")
    home.dispatch.add(home.record)
    home.place()
    before = home.dispatch.stats("birds")
    home.go_on()
    assert home.dispatch.stats("birds") == before
    assert all(isinstance(outcome(pending), NotServed) for pending, _ in asked)
