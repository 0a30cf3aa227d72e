"""Several services on the same devices, asked for more than these can do, in virtual time: what is
answered in time stays, whoever is more urgent goes first, and nearly nothing is computed in vain.
"""

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from potluck.serve.runtime.device_placement import ServiceDemand, kinds_of, place_all, record
from potluck.serve.runtime.dispatch import Dispatch
from potluck.serve.runtime.measure import MeasuredService, padded_times
from potluck.serve.scheduling.records import Latency
from potluck.serve.scheduling.replica_pools import Pool

torch = pytest.importorskip("torch")
SIZES = (1, 2, 4, 8, 16, 32)
LIMITS_S = {"a": 0.3, "b": 1.0, "c": 0.5, "d": 1.0, "e": 1.0, "f": 0.48, "g": 0.4}
LIMITS_S |= {"h": 0.4, "i": 0.3, "j": 0.75, "k": 0.15}
SECONDS = {"a": (0.006, 0.004), "b": (0.012, 0.012), "c": (0.006, 0.004)}  # of a batch; of a row
SECONDS |= {"d": (0.0, 0.005), "e": (0.02, 0.0025)}
SECONDS |= {"f": (0.0233, 0.0016), "g": (0.0237, 0.0013)}
SECONDS |= {"h": (0.002, 0.0001), "i": (0.001, 0.0005), "j": (0.0, 0.042), "k": (0.0, 0.012)}
PER_S = {"a": 90.0, "b": 18.0, "c": 90.0}  # what two devices can just do
PER_S |= {"d": 200.0, "e": 320.0}  # besides
PER_S |= {"h": 6150.0, "i": 1880.0}  # what one device can just do, without time to it and back
PER_S |= {"j": 19.0, "k": 7.6}  # what one device can just do besides
PER_S |= {"f": 216.0, "g": 178.0}  # what one device can just do, in full batches
NAMES = ("a", "b", "c")
DEVICES = ("one", "two")
WAY_S = 0.002
CHANCE = 0.1  # what batches take longer than was measured, in the mean
LASTS_S = 10.0
ENDS = ("in time", "late", "refused")


class SerialDevice:
    """Has one service loaded; computes one batch after the other."""

    def __init__(self, name, batch):
        self.devices, self.batch = (name,), batch
        self.is_lost = self.is_leaving = False
        self.n_under_way = 0

    def close(self):
        self.is_lost = True


class SerialAnswer:
    """What comes, when its time has come."""

    def __init__(self, device, rows):
        self.devices, self.rows = (device,), rows
        self.called = None

    def on_done(self, callback):
        self.called = callback

    def wait(self):
        return [torch.zeros(self.rows, 1)]


class SerialHome:
    """A dispatch over devices that take `slower` times as long as was measured."""

    def __init__(self, priority, slower=1.0, names=NAMES, devices=DEVICES):
        self.now_s, self.slower = 0.0, slower
        self.names = names
        self.heap, self.order = [], count()
        self.rng = Random(1)
        self.free_s = dict.fromkeys(DEVICES, 0.0)
        self.dispatch = Dispatch(self.compute, lambda: self.now_s)
        wanted = [
            ServiceDemand(name=name, slo=Latency(limit_s), priority=priority.get(name, 0))
            for name, limit_s in LIMITS_S.items()
            if name in names
        ]
        times = {name: dict.fromkeys(devices, measured(name)) for name in names}
        memory = dict.fromkeys(devices, 10**9)
        kinds = kinds_of(times, memory)
        for each in wanted:
            self.dispatch.add(record(each, times[each.name], kinds, 4))
        self.dispatch.place(
            [
                (
                    Pool(place.allocation, sum(place.n_replicas.values())),
                    [SerialDevice(name, place.allocation.batch) for name in place.n_replicas],
                )
                for place in place_all(wanted, times, memory).values()
            ]
        )

    def at(self, at_s, what):
        heappush(self.heap, (at_s, next(self.order), what))

    def compute(self, name, device, inputs, rows, left_s):
        answer = SerialAnswer(device.devices[0], rows)
        chance = 1 + CHANCE * self.rng.expovariate(1)
        begun_s = max(self.now_s, self.free_s[answer.devices[0]])
        self.free_s[answer.devices[0]] = begun_s + self.slower * chance * batch_s(name, rows)
        self.at(self.free_s[answer.devices[0]] + WAY_S, lambda: answer.called(None))
        return answer

    def play(self, load, lasts_s=LASTS_S):
        """What becomes of requests at so many times what the devices can just do."""
        asked = []

        def ask(name):
            row = [torch.zeros(1, 1)]
            asked.append(self.dispatch.ask(name, row, 1, lambda outputs: outputs))

        for name in self.names:
            at_s, per_s = self.now_s, PER_S[name]
            until_s = at_s + lasts_s
            while (at_s := at_s + self.rng.expovariate(load * per_s)) < until_s:
                self.at(at_s, lambda name=name: ask(name))
        while self.heap:
            self.now_s, _, what = heappop(self.heap)
            what()
        ends = Counter()
        for each in asked:
            assert each.future.done()
            is_refused = each.future.exception() is not None
            end = "refused" if is_refused else "late" if each.is_late else "in time"
            ends[end] += 1
            ends[each.service, end] += 1
        return ends


def batch_s(name, rows):
    whole_s, row_s = SECONDS[name]
    return whole_s + row_s * next(size for size in SIZES if size >= rows)


def measured(name):
    pays = SECONDS[name][0] > 0  # else larger batches serve no more
    limit_s = LIMITS_S[name]
    sizes = tuple(n for n in SIZES if n == 1 or (pays and 2 * batch_s(name, n) <= limit_s))
    seconds = [batch_s(name, n) for n in sizes]
    return MeasuredService(
        alone=padded_times(sizes, seconds),
        in_pairs=padded_times(sizes, [2 * each for each in seconds]),
        memory_bytes=1,
        item_bytes=0,
    )


@pytest.fixture
def serial_home(request):
    opened = SerialHome(*request.param)
    yield opened
    opened.dispatch.close()


@pytest.mark.parametrize("serial_home", [({},), ({"a": 1},), ({}, 1.4)], indirect=True)
def test_goodput_stays_in_overload_and_little_is_computed_in_vain(serial_home):
    peak = 0
    for load in (1.0, 1.5, 2.0, 4.0):
        ends = serial_home.play(load)
        peak = max(peak, ends["in time"])
        assert ends["in time"] >= 0.9 * peak  # 0.95 and more but for chance
        assert ends["late"] <= 0.07 * ends["in time"]
    expected = 0.5 * LASTS_S * sum(PER_S[name] for name in NAMES)
    assert serial_home.play(0.5)["in time"] >= 0.99 * expected * 0.9


@pytest.mark.parametrize("slower", [1.0, 1.4])
@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES])
@pytest.mark.parametrize("name", ["a", "c"])
def test_goodput_of_a_service_of_its_own_stays_in_overload(name, devices, slower):
    opened = SerialHome({}, slower, (name,), devices)
    in_time = [opened.play(load * len(devices))["in time"] for load in (3.0, 6.0, 9.0)]
    opened.dispatch.close()
    assert min(in_time) >= 0.9 * max(in_time)


@pytest.mark.parametrize("serial_home", [({},)], indirect=True)
def test_nobody_is_refused_below_what_the_devices_can_do(serial_home):
    ends = serial_home.play(0.9)
    assert ends["in time"] >= 0.994 * sum(n for end, n in ends.items() if isinstance(end, str))


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES])
def test_short_batches_get_their_part_of_a_device_beside_long_ones(devices):
    opened = SerialHome({}, names=("d", "e"), devices=devices)
    for load in (0.5, 0.7):
        ends = opened.play(load * len(devices) / len(DEVICES))
        for name in ("d", "e"):
            asked = sum(ends[name, end] for end in ENDS)
            assert ends[name, "in time"] >= 0.99 * asked
    opened.dispatch.close()


@pytest.mark.parametrize("priority", [{}, {"f": 1}, {"g": 1}, {"f": 9}])
def test_small_batches_of_one_leave_the_others_their_part_however_urgent_it_is(priority):
    """A batch of one takes a third of the time of 32."""
    opened = SerialHome(priority, names=("f", "g"), devices=DEVICES[:1])
    ends = opened.play(0.6)
    for name in ("f", "g"):
        asked = sum(ends[name, end] for end in ENDS)
        assert ends[name, "in time"] >= 0.99 * asked
    ends = opened.play(3.0)
    if max(priority.values(), default=0) < 2:
        assert min(ends[name, "in time"] for name in ("f", "g")) > 0.05 * ends["in time"]
    opened.dispatch.close()


@pytest.mark.parametrize(
    ("names", "priority"), [("h", {}), ("hi", {}), ("hi", {"h": 1}), ("hi", {"i": 2})]
)
def test_a_device_has_no_time_without_a_batch_in_overload(names, priority):
    """Though one of its batches takes hardly longer than the way there."""
    opened = SerialHome(priority, names=names, devices=DEVICES[:1])
    for load in (1.5, 4.0):
        ends = opened.play(load, lasts_s=2.0)
        worth_s = sum(ends[name, "in time"] / PER_S[name] for name in names)
        assert worth_s * (1 + CHANCE) >= 2.0
    opened.dispatch.close()


@pytest.mark.parametrize("priority", [{}, {"k": 1}, {"k": 2}])
def test_batches_that_follow_each_other_leave_others_the_time_that_their_limits_need(priority):
    """Two long ones take longer than the others may wait."""
    opened = SerialHome(priority, 2.0, names="jk", devices=DEVICES[:1])
    ends = opened.play(0.4, lasts_s=60.0)
    assert ends["k", "in time"] >= 0.97 * sum(ends["k", end] for end in ENDS)
    opened.dispatch.close()


@pytest.mark.parametrize(
    ("names", "devices"), [(("a", "b", "c"), ("one", "two")), (("a", "c"), ("one",))]
)
def test_the_more_urgent_service_goes_first_in_overload(names, devices):
    found = {}
    for urgent in ("a", "c"):
        opened = SerialHome({urgent: 1}, names=names, devices=devices)
        found[urgent] = opened.play(3.0)
        opened.dispatch.close()
    for urgent, other in (("a", "c"), ("c", "a")):
        ends = found[urgent]
        assert ends[urgent, "in time"] > 2 * ends[other, "in time"]
        assert ends[urgent, "in time"] > 1.3 * found[other][urgent, "in time"]
