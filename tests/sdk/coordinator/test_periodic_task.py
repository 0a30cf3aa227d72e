"""What is done again and again goes on, whatever is raised in between."""

import threading

from potluck.coordinator.periodic_task import FAULTS, MOST_TOLD, ThreadedTask


def test_what_is_raised_is_told_and_the_next_time_goes_on(monkeypatch):
    n, ended = 0, threading.Event()
    told = []
    monkeypatch.setattr(FAULTS, "exception", lambda text, *about: told.append(text % about))

    def work():
        nonlocal n
        n += 1
        if n <= 2 * MOST_TOLD:
            raise ValueError("made up")
        return n < 3 * MOST_TOLD

    ThreadedTask("again", 0.0, work, ended.set).join()
    assert n == 3 * MOST_TOLD
    assert ended.is_set()
    assert told == ["a fault in potluck again"] * MOST_TOLD
