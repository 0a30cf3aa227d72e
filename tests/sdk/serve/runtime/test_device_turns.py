"""Services that ask devices themselves wait for their turn there, beside batches."""

import threading
from collections import defaultdict
from random import Random
from typing import ClassVar

import pytest
from tests.sdk.serve.runtime.test_dispatch import ScriptedHome, outcome
from tests.timeouts import TIMEOUT_S

from potluck.serve.scheduling.fair_queueing import AT_ONCE, FairQueue

torch = pytest.importorskip("torch")


class Watched(FairQueue):
    """A queue that tells who waits."""

    waits: ClassVar = defaultdict(threading.Event)

    def next(self, waiting, start_s):
        for each in waiting:
            self.waits[each.service].set()
        return super().next(waiting, start_s)


class Asker(threading.Thread):
    """Takes a turn, says so, and leaves once it may."""

    def __init__(self, dispatch, name, devices, priority=0):
        super().__init__(daemon=True)
        self.came, self.may_go = threading.Event(), threading.Event()
        self.turn = dispatch.turns.turn(name, devices, priority)
        self.start()

    def run(self):
        with self.turn:
            self.came.set()
            assert self.may_go.wait(TIMEOUT_S)

    def goes(self):
        self.may_go.set()
        self.join(TIMEOUT_S)


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr("potluck.serve.runtime.device_turns.FairQueue", Watched)
    Watched.waits.clear()
    return Watched.waits


@pytest.mark.parametrize("seed", range(6))
def test_the_most_urgent_has_the_next_turn_on_a_device(watched, seed):
    dispatch, priorities = ScriptedHome(lambda device, x: None).dispatch, [*range(-2, 4)]
    first = [Asker(dispatch, f"first-{i}", ("a",), -3) for i in range(AT_ONCE)]
    assert all(each.came.wait(TIMEOUT_S) for each in first)
    Random(seed).shuffle(priorities)
    waiting = {}
    for priority in priorities:
        waiting[priority] = Asker(dispatch, f"text{priority}", ("a",), priority)
        assert watched[f"text{priority}"].wait(TIMEOUT_S)
    assert not any(each.came.is_set() for each in waiting.values())
    last = first[0]
    for priority in sorted(priorities, reverse=True):
        last.goes()
        last = waiting[priority]
        assert last.came.wait(TIMEOUT_S)
        came = {key for key, each in waiting.items() if each.came.is_set()}
        assert came == {key for key in priorities if key >= priority}
    for each in (last, *first):
        each.goes()


def test_texts_on_several_devices_and_batches_all_come_to_their_turn():
    home, random = ScriptedHome(lambda device, x: None), Random(0)
    chosen = [random.sample(("a", "b", "c"), random.randint(1, 3)) for _ in range(40)]
    texts = [Asker(home.dispatch, f"text{i % 5}", each, i % 3) for i, each in enumerate(chosen)]
    asked = [home.ask(float(i), float(i + 1)) for i in range(30)]
    for text in texts:
        text.may_go.set()
        home.go_on(random)
    for text in texts:
        for _ in range(int(TIMEOUT_S / 0.01)):
            home.go_on(random)  # full batches may have both places
            text.join(0.01)
            if not text.is_alive():
                break
        assert not text.is_alive()
    home.go_on(random)
    for pending, expected in asked:
        assert torch.equal(outcome(pending), expected)


def test_whoever_waits_for_a_turn_is_let_go_when_all_ends():
    dispatch = ScriptedHome(lambda device, x: None).dispatch
    first = [Asker(dispatch, f"first-{i}", ("a",), -3) for i in range(AT_ONCE)]
    assert all(each.came.wait(TIMEOUT_S) for each in first)
    waiting = Asker(dispatch, "text", ("a", "b"))
    dispatch.close()
    assert waiting.came.wait(TIMEOUT_S)
    for each in (waiting, *first):
        each.goes()


def test_whoever_is_interrupted_while_it_waits_has_no_turn(monkeypatch):
    dispatch = ScriptedHome(lambda device, x: None).dispatch
    first = [Asker(dispatch, f"first-{i}", ("a",)) for i in range(AT_ONCE)]
    assert all(each.came.wait(TIMEOUT_S) for each in first)

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("potluck.serve.runtime.device_turns.threading.Event", Interrupted)
        for _ in range(AT_ONCE):
            with pytest.raises(KeyboardInterrupt), dispatch.turns.turn("text", ("b", "a"), 9):
                pass
    for each in first:
        each.goes()
    last = Asker(dispatch, "last", ("a", "b"))
    assert last.came.wait(TIMEOUT_S)
    last.goes()
