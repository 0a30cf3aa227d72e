"""Times of batches as placement is told them: larger ones only while they are of use."""

from itertools import count

import pytest

from potluck.errors import OutOfMemory
from potluck.serve.runtime.measure import ENTRANCE_S, measure, padded_times

torch = pytest.importorskip("torch")


class Asked:
    def wait(self):
        return []


class Device:
    """Takes so long for a batch, by a clock of its own, one batch after the other."""

    def __init__(self, fixed_s, row_s, memory=10**9):
        self.now_s = 0.0
        self.fixed_s = fixed_s
        self.row_s = row_s
        self.memory = memory
        self.sizes = []

    def load(self, batch):
        return self

    def close(self):
        pass

    @property
    def memory_bytes(self):
        return {"a": self.memory}

    def ask(self, inputs, rows):
        self.sizes.append(rows)
        self.now_s += self.fixed_s + rows * self.row_s
        return Asked()


def measured(device, model, limit_s):
    return measure(device.load, model, limit_s, lambda: device.now_s)


def test_larger_batches_than_hold_the_limit_twice_are_not_tried(model):
    device = Device(0.1, 0.1)
    found = measured(device, model, limit_s=1.0)
    # of two rows 0.3 s, of four 0.5 s, and two of these are 1 s; of eight nobody asks
    assert found.alone.at(1) == pytest.approx(0.2)
    assert max(device.sizes) == 8
    assert found.alone.largest == 8
    assert max(Device(1.0, 0.1).sizes, default=0) == 0
    slow = Device(1.0, 0.1)
    assert measured(slow, model, limit_s=1.0).alone.items == (1,)
    assert {*slow.sizes} == {1}


def test_what_takes_long_is_measured_once(model):
    slow = Device(2.0, 0.0)
    measured(slow, model, limit_s=1.0)
    assert len(slow.sizes) == 1 + 1 + 2  # to warm up, alone, and two at once


def test_a_batch_beside_another_takes_twice_as_long_at_most(model):
    looks_s = (n * n * 1e-3 for n in count())  # a machine that gets slower and slower
    device = Device(0.0, 0.0)
    found = measure(device.load, model, 0.01, lambda: next(looks_s))
    assert all(found.in_pairs.at(n) <= 2 * found.alone.at(n) + 1e-12 for n in found.alone.items)


def test_a_batch_between_two_sizes_takes_as_long_as_the_larger_one():
    times = padded_times((1, 2, 4, 8), (1.0, 2.0, 3.0, 5.0))
    assert [times.at(n) for n in range(1, 9)] == [1.0, 2.0, 3.0, 3.0, 5.0, 5.0, 5.0, 5.0]
    assert padded_times((1,), (1.0,)).items == (1,)


class UnevenDevice(Device):
    """Every third batch of it takes twice as long."""

    def ask(self, inputs, rows):
        asked = super().ask(inputs, rows)
        self.now_s += self.fixed_s if len(self.sizes) % 3 == 0 else 0.0
        return asked


def test_an_answer_is_expected_by_the_slowest_of_them_and_its_way(model):
    found = measured(UnevenDevice(0.01, 0.0), model, limit_s=1e-3)
    assert found.alone.at(1) == pytest.approx(0.01)
    assert found.slowest_s == pytest.approx(0.02)
    assert found.alone.at(1) + found.beyond_s >= 0.02 + ENTRANCE_S


class Crowded(Device):
    """Has room to compute so many rows; more fail when they are waited for."""

    def __init__(self, n_rows):
        super().__init__(0.1, 0.01)
        self.n_rows, self.n_under_way = n_rows, 0

    def ask(self, inputs, rows):
        super().ask(inputs, rows)
        self.n_under_way += rows
        return Crowding(self, rows)


class Crowding:
    def __init__(self, device, rows):
        self.device, self.rows = device, rows

    def wait(self):
        n_under_way = self.device.n_under_way
        self.device.n_under_way -= self.rows
        if n_under_way > self.device.n_rows:
            raise OutOfMemory("there is no room.", device="a")
        return []


@pytest.mark.parametrize(("room_for", "largest"), [(2, 1), (15, 4), (16, 8), (63, 16), (64, 32)])
def test_batches_are_as_large_as_two_have_room_to_be_computed(model, room_for, largest):
    found = measured(Crowded(room_for), model, limit_s=10.0)
    assert found.alone.largest == found.in_pairs.largest == largest
    assert found.slowest_s == pytest.approx(0.11)


def test_what_has_no_room_for_one_row_is_not_served(model):
    with pytest.raises(OutOfMemory):
        measured(Crowded(0), model, limit_s=10.0)
