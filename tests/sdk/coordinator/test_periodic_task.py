"""What is done again and again goes on, whatever is raised in between."""

import threading

from potluck.coordinator.periodic_task import FAULTS, MAX_REPORTS, ThreadedTask


def test_what_is_raised_is_told_and_the_next_time_goes_on(monkeypatch):
    n, ended = 0, threading.Event()
    reports = []
    monkeypatch.setattr(FAULTS, "exception", lambda text, *about: reports.append(text % about))

    def work():
        nonlocal n
        n += 1
        if n <= 2 * MAX_REPORTS:
            raise ValueError("made up")
        return n < 3 * MAX_REPORTS

    ThreadedTask("again", 0.0, work, ended.set).join()
    assert n == 3 * MAX_REPORTS
    assert ended.is_set()
    assert reports == ["a fault in potluck again"] * MAX_REPORTS
